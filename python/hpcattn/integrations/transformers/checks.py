# SPDX-License-Identifier: Apache-2.0
"""What Transformers may ask of an attention function, and hpcattn refuses."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

# Arguments by which a model changes its scores or asks for its weights. All others that reach an
# attention function (use_cache, position_ids, num_items_in_batch, ...) do not change the result.
_CHANGES_SCORES = (
    "position_bias",
    "attention_bias",
    "alibi",
    "head_mask",
    "layer_head_mask",
    "block_indices",
    "indices",
    "rel_pos",
    "relative_position_bias",
)


def layer_name(module: nn.Module) -> str:
    """Who asks, for messages: "LlamaAttention of layer 3"."""
    layer = getattr(module, "layer_idx", None)
    return type(module).__name__ + ("" if layer is None else f" of layer {layer}")


def refuse_unsupported(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    dropout: float,
    s_aux: Tensor | None,
    kwargs: Mapping[str, Any],
) -> None:
    """Raise for what hpcattn does not compute.

    Raises:
        NotImplementedError: Dropout, weights as an output, a bias or mask on heads, a value of
            another head_dim than the key's, or sinks that the model does not pass on.
        ValueError: q heads that are no multiple of the KV heads.
    """
    who = layer_name(module)
    if dropout:
        raise NotImplementedError(
            f"hpcattn: {who} asks for an attention dropout of {dropout}, expected 0: hpcattn is for"
            " inference. Call model.eval(), or train with another attn_implementation."
        )
    if kwargs.get("output_attentions"):
        raise NotImplementedError(
            f"hpcattn: {who} is asked for output_attentions, but the weights are never stored."
            ' Use attn_implementation="eager" to see them.'
        )
    for name in _CHANGES_SCORES:
        if kwargs.get(name) is not None:
            raise NotImplementedError(
                f"hpcattn: {who} passes {name}, which hpcattn does not apply."
                ' Use attn_implementation="eager" or "sdpa" for this model.'
            )
    if s_aux is None and isinstance(getattr(module, "sinks", None), Tensor):
        raise NotImplementedError(
            f"hpcattn: {who} has attention sinks but does not pass them on as s_aux."
            ' Use attn_implementation="eager" for this model.'
        )
    if value.shape[-1] != key.shape[-1]:
        raise NotImplementedError(
            f"hpcattn: {who} has values of head_dim {value.shape[-1]} and keys of head_dim"
            f' {key.shape[-1]}, expected the same. Use attn_implementation="eager" or "sdpa".'
        )
    if query.shape[1] % key.shape[1] != 0:
        raise ValueError(
            f"hpcattn: {who} has {query.shape[1]} query heads and {key.shape[1]} KV heads,"
            " expected a multiple of the KV heads."
        )


def softmax_scale(query: Tensor, scaling: float | None) -> float:
    """The scale that the model names, else 1/sqrt(head_dim)."""
    return float(query.shape[-1] ** -0.5 if scaling is None else scaling)
