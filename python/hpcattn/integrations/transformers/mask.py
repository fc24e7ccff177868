# SPDX-License-Identifier: Apache-2.0
"""The mask that Transformers makes for `attn_implementation="hpcattn"`.

hpcattn takes lengths and a window, not a matrix. So this mask is a [batch, kv_len] tensor, True for
KV tokens that exist, and carries as an attribute what the model meant it to be: causal or not, the
window, the place of the queries. Transformers describes a mask as a composition of small functions;
those that hpcattn computes are recognised by name, any other composition is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils

from hpcattn.integrations.transformers.plans import PlanCache, outside_graphs

_ATTRIBUTE = "_hpcattn_meaning"


@dataclass
class MaskMeaning:
    """What a mask stands for.

    Attributes:
        causal: A query token sees no later KV token.
        window: KV tokens that a query token sees, as hpcattn counts them (its own included, to
            either side where not causal); None for all.
        query_end: Index in the KV tokens just past the last query token. None where the queries
            are not KV tokens (cross attention, no window).
        sequence_ids: [batch, q_len], for several sequences packed into one row: their number.
        all_exist: No KV token before query_end is padding.
    """

    causal: bool
    window: int | None
    query_end: int | None
    sequence_ids: Tensor | None
    all_exist: bool
    plans: PlanCache = field(default_factory=PlanCache)


def meaning_of(mask: Tensor) -> MaskMeaning | None:
    """The meaning that make_mask attached; None for a mask that was made elsewhere."""
    meaning = getattr(mask, _ATTRIBUTE, None)
    return meaning if isinstance(meaning, MaskMeaning) else None


@outside_graphs
def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    device: torch.device | str = "cpu",
    **_: Any,
) -> Tensor:
    """Transformers' mask interface: see masking_utils.sdpa_mask for its arguments.

    Returns:
        [batch_size, kv_length] bool with a MaskMeaning.

    Raises:
        NotImplementedError: The composition says something that hpcattn does not compute.
    """
    if attention_mask is not None and meaning_of(attention_mask) is not None:
        # With a static cache generate() makes the masks ahead, and the model hands them in again.
        return attention_mask
    leaves = _leaves(mask_function)
    causal = any(leaf is masking_utils.causal_mask_function for leaf in leaves)
    window: int | None = None
    sequence_ids: Tensor | None = None
    for leaf in leaves:
        kind = getattr(leaf, "__qualname__", repr(leaf))
        if leaf in (masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function):
            continue
        if kind == "sliding_window_overlay.<locals>.inner_mask":
            window = int(_closure(leaf)["sliding_window"])
            if not causal:
                raise _unsupported("a window to the left alone without a causal mask")
        elif kind == "sliding_window_bidirectional_overlay.<locals>.inner_mask":
            # There |q - k| <= w is seen; hpcattn's window counts the token itself.
            window = int(_closure(leaf)["sliding_window"]) + 1
        elif kind == "packed_sequence_mask_function.<locals>.inner_mask":
            sequence_ids = _closure(leaf)["packed_sequence_mask"]
        else:
            raise _unsupported(kind.removesuffix(".<locals>.inner_mask"))

    exist = torch.ones(batch_size, kv_length, dtype=torch.bool, device=device)
    if attention_mask is not None:
        given = attention_mask[:, kv_offset : kv_offset + kv_length].to(exist)
        # Transformers takes tokens past the given mask (a static cache's tail) as not existing.
        exist[:, given.shape[1] :] = False
        exist[:, : given.shape[1]] = given
    query_end = None
    if causal or window is not None:
        query_end = int(q_offset) + q_length - kv_offset
        exist[:, query_end:] = False
    meaning = MaskMeaning(
        causal=causal,
        window=window,
        query_end=query_end,
        sequence_ids=sequence_ids,
        all_exist=attention_mask is None or bool(exist[:, :query_end].all()),
    )
    setattr(exist, _ATTRIBUTE, meaning)
    return exist


def _leaves(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The functions of which and_masks made this one, nested ones opened."""
    kind = getattr(function, "__qualname__", "")
    if kind == "and_masks.<locals>.and_mask":
        parts = _closure(function)["mask_functions"]
        return [leaf for part in parts for leaf in _leaves(part)]
    if kind == "remap_positions_for_packed_sequence.<locals>.inner_mask":
        # Counts positions from each packed sequence's first token, as hpcattn's requests do.
        return _leaves(_closure(function)["mask_function"])
    return [function]


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    """Names and values that an inner function holds."""
    cells = getattr(function, "__closure__", None) or ()
    names = function.__code__.co_freevars
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}


def _unsupported(what: str) -> NotImplementedError:
    return NotImplementedError(
        f"hpcattn: the model's mask is made by {what}, expected causal, sliding-window,"
        ' bidirectional or packed-sequence masks. Use attn_implementation="sdpa" or "eager" for'
        " this model."
    )
