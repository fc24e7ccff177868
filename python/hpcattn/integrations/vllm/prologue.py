# SPDX-License-Identifier: Apache-2.0
"""The fused prologue: the engine's compile passes hand a layer's QK-norm, RoPE and KV write here.

Everything before attention is one call of `rope_norm_store_kv`, which writes pages in place,
whatever their memory order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import hpcattn
from hpcattn.integrations.vllm import kv_views


class FusedPrologue:
    """The hooks of an implementation that the fusion passes look for."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    attn_type: str
    kv_sharing_target_layer_name: str | None
    pages: kv_views.PageViews

    def kv_scales(self, layer: Any) -> dict[str, Any]:
        """`k_scale` and `v_scale` of a float8 cache; else nothing."""
        raise NotImplementedError

    def _fuses(self) -> bool:
        # A layer that shares KV writes none, and its pattern has no write to fuse with.
        return self.attn_type == "decoder" and self.kv_sharing_target_layer_name is None

    def fused_qk_norm_rope_kvcache_supported(self) -> bool:
        """Whether `do_qk_norm_rope_kvcache_update` may be called for this layer."""
        return self._fuses()

    def fused_qk_norm_mrope_kvcache_supported(self) -> bool:
        """Whether `do_qk_norm_mrope_kvcache_update` may be called for this layer."""
        return self._fuses()

    def fused_rope_kvcache_supported(self) -> bool:
        """Whether `do_rope_and_kv_cache_update` may be called for this layer."""
        return self._fuses()

    def do_qk_norm_rope_kvcache_update(
        self,
        layer: Any,
        qkv: torch.Tensor,
        q_out: torch.Tensor,
        k_out: torch.Tensor,
        positions: torch.Tensor,
        q_weight: torch.Tensor,
        k_weight: torch.Tensor,
        rms_norm_eps: float,
        cos_sin_cache: torch.Tensor,
        is_neox: bool,
        kv_cache: torch.Tensor,
        layer_slot_mapping: torch.Tensor,
    ) -> None:
        """RMSNorm of each head, then RoPE, then K and V into their pages.

        Args:
            layer: The engine's layer; has the scales.
            qkv: `[num_tokens, (num_heads + 2 * num_kv_heads) * head_size]`.
            q_out: `[num_tokens, num_heads, head_size]`, written.
            k_out: `[num_tokens, num_kv_heads, head_size]`, written.
            positions: `[num_tokens]`.
            q_weight: `[head_size]`, or with a dim of 1 before it.
            k_weight: As `q_weight`.
            rms_norm_eps: Added to the mean square.
            cos_sin_cache: `[max_position, rotary_dim]`.
            is_neox: Whether halves pair, not neighbours.
            kv_cache: As `forward` takes it.
            layer_slot_mapping: `[num_tokens]`, or fewer where the last tokens pad the batch.
        """
        q, k, v = kv_views.split_qkv(qkv, self.num_heads, self.num_kv_heads, self.head_size)
        _run(
            self,
            layer,
            (q, k, v),
            kv_cache,
            layer_slot_mapping,
            out_q=q_out.view(q.shape),
            out_k=k_out.view(k.shape),
            cos_sin=cos_sin_cache,
            positions=positions,
            is_neox=is_neox,
            norm=(q_weight, k_weight, rms_norm_eps),
        )

    def do_qk_norm_mrope_kvcache_update(
        self,
        layer: Any,
        qkv: torch.Tensor,
        q_out: torch.Tensor,
        positions: torch.Tensor,
        q_weight: torch.Tensor,
        k_weight: torch.Tensor,
        rms_norm_eps: float,
        cos_sin_cache: torch.Tensor,
        is_neox: bool,
        mrope_section: Sequence[int],
        is_interleaved: bool,
        rotary_dim: int,
        kv_cache: torch.Tensor,
        layer_slot_mapping: torch.Tensor,
    ) -> None:
        """The same with three positions a token.

        Args:
            layer: As above.
            qkv: As above.
            q_out: As above.
            positions: `[3, num_tokens]`: time, height, width.
            q_weight: As above.
            k_weight: As above.
            rms_norm_eps: As above.
            cos_sin_cache: As above.
            is_neox: As above.
            mrope_section: How many pairs follow each of the three.
            is_interleaved: Whether the three take turns along the pairs, rather than follow one
                another.
            rotary_dim: Dims that are rotated.
            kv_cache: As above.
            layer_slot_mapping: As above.
        """
        q, k, v = kv_views.split_qkv(qkv, self.num_heads, self.num_kv_heads, self.head_size)
        cos_sin = cos_sin_cache[:, :rotary_dim]
        section: Sequence[int] | None = mrope_section
        if is_interleaved:
            # The operator knows sections that follow one another: hand it rows made for each token.
            tokens = positions.shape[1]
            cos_sin = interleaved_rows(cos_sin, positions, mrope_section)
            positions = torch.arange(tokens, device=positions.device)
            section = None
        _run(
            self,
            layer,
            (q, k, v),
            kv_cache,
            layer_slot_mapping,
            out_q=q_out.view(q.shape),
            out_k=None,
            cos_sin=cos_sin,
            positions=positions,
            is_neox=is_neox,
            norm=(q_weight, k_weight, rms_norm_eps),
            mrope_section=section,
        )

    def do_rope_and_kv_cache_update(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        positions: torch.Tensor,
        cos_sin_cache: torch.Tensor,
        is_neox: bool,
        kv_cache: torch.Tensor,
        layer_slot_mapping: torch.Tensor,
    ) -> None:
        """RoPE of q and K in place, then K and V into their pages.

        Args:
            layer: As above.
            query: `[num_tokens, num_heads, head_size]`, rotated in place.
            key: `[num_tokens, num_kv_heads, head_size]`, rotated in place.
            value: As `key`, read.
            positions: As above.
            cos_sin_cache: As above.
            is_neox: As above.
            kv_cache: As above.
            layer_slot_mapping: As above.
        """
        q = query.view(-1, self.num_heads, self.head_size)
        k = key.view(-1, self.num_kv_heads, self.head_size)
        v = value.view(-1, self.num_kv_heads, self.head_size)
        _run(
            self,
            layer,
            (q, k, v),
            kv_cache,
            layer_slot_mapping,
            out_q=q,
            out_k=k,
            cos_sin=cos_sin_cache,
            positions=positions,
            is_neox=is_neox,
        )


def _run(
    impl: FusedPrologue,
    layer: Any,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    kv_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    out_q: torch.Tensor,
    out_k: torch.Tensor | None,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    is_neox: bool,
    norm: tuple[torch.Tensor, torch.Tensor, float] | None = None,
    mrope_section: Sequence[int] | None = None,
) -> None:
    """One call of the operator over the tokens that have a slot; rows of padding become 0."""
    q, k, v = qkv
    tokens = min(slots.shape[0], q.shape[0])
    k_cache, v_cache = impl.pages.of(kv_cache)
    weights: dict[str, Any] = {}
    if norm is not None:
        weights = {
            "norm_policy": "norm_then_rope",
            "q_norm_weight": norm[0].reshape(-1),
            "k_norm_weight": norm[1].reshape(-1),
            "norm_eps": norm[2],
        }
    hpcattn.rope_norm_store_kv(
        q[:tokens],
        k[:tokens],
        v[:tokens],
        cos_sin,
        style="neox" if is_neox else "interleaved",
        positions=positions[..., :tokens],
        mrope_section=mrope_section,
        slot_mapping=slots[:tokens],
        k_cache=k_cache,
        v_cache=v_cache,
        out_q=out_q[:tokens],
        out_k=None if out_k is None else out_k[:tokens],
        **impl.kv_scales(layer),
        **weights,
    )
    out_q[tokens:].zero_()
    if out_k is not None:
        out_k[tokens:].zero_()


def interleaved_rows(
    cos_sin: torch.Tensor, positions: torch.Tensor, mrope_section: Sequence[int]
) -> torch.Tensor:
    """Cosines and sines of each token, where the three positions take turns along the pairs.

    Pair i follows height where i % 3 is 1 and width where it is 2, as long as either has pairs
    left (i < 3 * its count); all other pairs follow time.

    Args:
        cos_sin: `[max_position, rotary_dim]`, cosines then sines.
        positions: `[3, num_tokens]`.
        mrope_section: Pairs of time, height and width.

    Returns:
        `[num_tokens, rotary_dim]`.
    """
    pairs = cos_sin.shape[1] // 2
    index = torch.arange(pairs, device=cos_sin.device)
    axis = torch.zeros_like(index)
    for place in (1, 2):
        axis[(index % 3 == place) & (index < 3 * mrope_section[place])] = place
    rows = cos_sin[positions]  # [3, num_tokens, rotary_dim]
    columns = torch.arange(2 * pairs, device=cos_sin.device)
    return rows[axis.repeat(2), :, columns].t().contiguous()
