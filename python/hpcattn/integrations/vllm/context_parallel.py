# SPDX-License-Identifier: Apache-2.0
"""Decode context parallelism: each rank holds a share of every request's KV tokens.

A step's new tokens are on every rank, so each attends to them at home, causally. What was cached
before is spread over the ranks: all query heads go to all of them, each attends to its share, and
the partial results come back by their LSE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import hpcattn
from hpcattn.integrations.vllm import _versions

if TYPE_CHECKING:
    from hpcattn.integrations.vllm.impl import HpcattnImpl
    from hpcattn.integrations.vllm.metadata import HpcattnMetadata


def cached_lens(
    metadata: HpcattnMetadata, world_size: int, rank: int, interleave: int
) -> torch.Tensor:
    """`[num_requests]` int32: how many of the tokens cached before this step lie on this rank."""
    from vllm.v1.attention.backends.utils import get_dcp_local_seq_lens

    cached = metadata.seq_lens - metadata.query_start_loc.diff()
    lens: torch.Tensor = get_dcp_local_seq_lens(cached, world_size, rank, interleave)
    return lens.int()


def forward(
    impl: HpcattnImpl,
    layer: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    metadata: HpcattnMetadata,
    out: torch.Tensor,
) -> None:
    """Attention of a step over all ranks of the group.

    Args:
        impl: This rank's layer.
        layer: The engine's layer; has the scales.
        query: `[num_tokens, num_heads, head_size]`, this rank's heads.
        key: `[num_tokens, num_kv_heads, head_size]`, the new tokens.
        value: As `key`.
        kv_cache: This rank's pages.
        metadata: With `cached_lens`.
        out: `[num_tokens, num_heads, head_size]`, written.
    """
    from vllm.distributed.parallel_state import get_dcp_group

    assert metadata.cached_lens is not None
    group = get_dcp_group()
    k_cache, v_cache = impl.pages.of(kv_cache)
    cu_seqlens = metadata.query_start_loc
    options: dict[str, Any] = {
        "scale": impl.scale,
        "softcap": impl.softcap,
        "return_lse": True,
        "fixed_split": metadata.fixed_split,
    }
    # Whatever its place on the rank, a cached token comes before every new one.
    cached, cached_lse = hpcattn.paged_attention(
        group.all_gather(query.contiguous(), dim=1),
        k_cache,
        v_cache,
        page_table=metadata.block_table,
        cu_seqlens_q=cu_seqlens,
        kv_lens=metadata.cached_lens,
        causal=False,
        **impl.kv_scales(layer),
        **options,
    )
    cached, cached_lse = combine(cached, cached_lse, group)
    # The sink is counted here, and nowhere else.
    new, new_lse = hpcattn.packed_attention(
        query,
        key,
        value,
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_k=cu_seqlens,
        causal=metadata.causal,
        sinks=impl.sinks,
        **options,
    )
    hpcattn.merge_partials([cached, new], [cached_lse.contiguous(), new_lse], out=out)


def combine(
    partial: torch.Tensor, lse: torch.Tensor, group: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Partial results of all heads on each rank -> whole results of this rank's heads.

    Args:
        partial: `[num_tokens, heads of all ranks, head_size]`.
        lse: `[num_tokens, heads of all ranks]` float32.
        group: The engine's group of ranks.

    Returns:
        `[num_tokens, num_heads, head_size]` and its LSE.
    """
    if partial.is_cuda:
        both: tuple[torch.Tensor, torch.Tensor] = _versions.combine_over_ranks()(
            partial, lse, group, return_lse=True
        )
        return both
    # The engine's function is a Triton kernel.
    lses = group.all_gather(lse.contiguous(), dim=0).view(group.world_size, *lse.shape)
    total = torch.logsumexp(lses, dim=0)
    weight = torch.where(total == -torch.inf, 0.0, torch.exp(lse - total))
    whole = group.all_reduce(partial * weight[..., None].to(partial.dtype))
    heads = partial.shape[1] // group.world_size
    mine = slice(heads * group.rank_in_group, heads * (group.rank_in_group + 1))
    return whole[:, mine].contiguous(), total[:, mine]
