# SPDX-License-Identifier: Apache-2.0
"""One of two ranks with half of every request's KV tokens; checks its heads against one pass.

python ranks.py RANK FILE      FILE: where the ranks meet
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from vllm.config import (
    ParallelConfig,
    VllmConfig,
    get_current_vllm_config,
    set_current_vllm_config,
)
from vllm.distributed import init_distributed_environment, initialize_model_parallel

import hpcattn
from layers import PAGE_SIZE, Batch, make_builder, make_cache, make_impl, make_layer

RANKS = 2
BATCH = Batch(q_lens=[1, 3, 12, 20], kv_lens=[40, 17, 12, 53])


def _slots(batch: Batch, rank: int, table: torch.Tensor) -> torch.Tensor:
    """Where each KV token of each request lies on this rank; -1 for one of another rank."""
    slots = []
    for row, length in enumerate(batch.kv_lens):
        position = torch.arange(length)
        local = position // RANKS
        slot = table[row, local // PAGE_SIZE] * PAGE_SIZE + local % PAGE_SIZE
        slots.append(torch.where(position % RANKS == rank, slot, -1))
    return torch.cat(slots).long()


def _check(rank: int, **options: Any) -> None:
    torch.manual_seed(0)  # the same numbers on both ranks
    heads, kv_heads = 8, 1  # the engine splits KV tokens where it has ranks beyond KV heads
    tokens, all_tokens = BATCH.num_tokens, sum(BATCH.kv_lens)
    query = torch.randn(tokens, heads, 64)
    k, v = torch.randn(all_tokens, kv_heads, 64), torch.randn(all_tokens, kv_heads, 64)
    sinks = torch.randn(heads) if options.pop("sinks", False) else None
    mine = slice(rank * heads // RANKS, (rank + 1) * heads // RANKS)

    common = BATCH.common()
    impl = make_impl(
        num_heads=heads // RANKS,
        num_kv_heads=kv_heads,
        sinks=None if sinks is None else sinks[mine],
        **options,
    )
    assert impl.dcp_world_size == RANKS
    builder = make_builder(impl, parallel_config=get_current_vllm_config().parallel_config)
    layer, cache = make_layer(impl), make_cache(impl, 20)
    table = common.block_table_tensor
    impl.do_kv_cache_update(layer, k, v, cache, _slots(BATCH, rank, table))
    metadata = builder.build(0, common)
    ends = torch.tensor(BATCH.kv_lens).cumsum(0)
    new = torch.cat(
        [torch.arange(end - q, end) for q, end in zip(BATCH.q_lens, ends.tolist(), strict=True)]
    )
    output = torch.full((tokens, heads // RANKS, 64), torch.nan)
    impl.forward(layer, query[:, mine], k[new], v[new], cache, metadata, output=output)

    cu_seqlens_k = torch.cat([torch.zeros(1), ends]).int()
    whole = hpcattn.packed_attention(
        query,
        k,
        v,
        cu_seqlens_q=common.query_start_loc,
        cu_seqlens_k=cu_seqlens_k,
        scale=impl.scale,
        softcap=impl.softcap,
        sinks=sinks,
    )
    assert isinstance(whole, torch.Tensor)
    torch.testing.assert_close(output, whole[:, mine], rtol=1e-5, atol=1e-5)


def main() -> None:
    rank = int(sys.argv[1])
    parallel = ParallelConfig(tensor_parallel_size=RANKS, decode_context_parallel_size=RANKS)
    with torch.no_grad(), set_current_vllm_config(VllmConfig(parallel_config=parallel)):
        init_distributed_environment(
            RANKS, rank, f"file://{sys.argv[2]}", local_rank=rank, backend="gloo"
        )
        initialize_model_parallel(RANKS, decode_context_model_parallel_size=RANKS)
        _check(rank)
        _check(rank, logits_soft_cap=4.0, sinks=True)
        for options in ({"sliding_window": 8}, {"alibi_slopes": [0.5] * 4}):
            with pytest.raises(ValueError, match="decode context parallelism not supported"):
                make_impl(num_heads=4, num_kv_heads=1, **options)
    print("equal")


if __name__ == "__main__":
    main()
