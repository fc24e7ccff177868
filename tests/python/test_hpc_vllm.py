# SPDX-License-Identifier: Apache-2.0
"""The calls as vLLM makes them: packed pages, a scratch page for the prologue, persistent maps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hpcattn.integrations.hpc as hpc
import reference
from hpc_cases import E4M3, assert_near, make_prologue, stored

HEADS, HEAD_DIM, PAGE = (8, 2), 128, 64


def packed_pages(num_pages: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Pages [num_pages, KV heads, page, 2 * head_dim] as K and V [num_pages, page, heads, dim]."""
    pages = torch.full((num_pages, HEADS[1], PAGE, 2 * HEAD_DIM), 0x7F, dtype=torch.uint8)
    if dtype != E4M3:
        pages = torch.full(pages.shape, float("nan"), dtype=dtype)
    k, v = pages.view(dtype).transpose(1, 2).split(HEAD_DIM, dim=-1)
    return k, v


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, E4M3])
def test_scratch_page_then_packed_pages_then_decode(dtype: torch.dtype, rows: int) -> None:
    """Rotated K and V come out by out_k and out_v, are scattered by slots, then attention runs."""
    lengths = [(rows, rows), (rows, 70), (rows, 200)]
    batch = make_prologue(
        lengths=lengths, heads=HEADS, head_dim=HEAD_DIM, page_size=PAGE, kv_dtype=dtype
    )
    table = batch.arguments["kvcache_indices"]
    k_cache, v_cache = packed_pages(13, dtype)
    past = torch.Generator().manual_seed(5)
    for r, (n, kv) in enumerate(lengths):
        for p in range(kv - n):
            token = torch.randn(2, *k_cache.shape[2:], generator=past).to(dtype)
            k_cache[table[r, p // PAGE], p % PAGE] = token[0]
            v_cache[table[r, p // PAGE], p % PAGE] = token[1]
    num_tokens = rows * len(lengths)
    out_q = torch.empty(num_tokens, HEADS[0], HEAD_DIM, dtype=dtype)
    out_k = torch.empty(num_tokens, HEADS[1], HEAD_DIM, dtype=dtype)
    out_v = torch.empty_like(out_k)
    scratch = torch.zeros(1, PAGE, HEADS[1], HEAD_DIM, dtype=dtype)
    weights = {name: torch.rand(HEAD_DIM) + 0.5 for name in ("q_norm_weight", "k_norm_weight")}
    scales = (torch.full((1,), 0.5), torch.full((1,), 0.25))
    shared: dict[str, Any] = {
        **batch.arguments,
        "key_cache": scratch,
        "value_cache": scratch,
        "kvcache_indices": torch.zeros_like(table[:, :1]),
        "is_prefill": rows > 1,
        "out_q": out_q,
        "out_k": out_k,
        "out_v": out_v,
        "qk_norm_policy": 2,
        **weights,
    }
    if dtype == E4M3:
        q, q_scale, flag = hpc.rope_norm_store_kv_fp8(
            **shared, k_scale=scales[0], v_scale=scales[1], quant_policy=1, max_seqlens=rows
        )
        if rows > 1:
            q_scale = q_scale[:, :, :rows].transpose(1, 2).reshape(num_tokens, HEADS[0])
    else:
        q, flag = hpc.rope_norm_store_kv(**shared), None
    assert q is out_q
    assert float(scratch.double().abs().sum()) == 0.0
    for t, (page, place) in enumerate(batch.slots):
        k_cache[page, place], v_cache[page, place] = out_k[t], out_v[t]
    if dtype != E4M3:
        assert torch.equal(stored(k_cache.contiguous(), batch.slots), out_k)

    kv_lens = batch.arguments["num_seqlen_per_req"]
    task_map = hpc.get_attention_decode_task_workspace(256, 4096, HEADS[1], min_process_len=1024)
    hpc.assign_attention_decode_task(
        kv_lens, task_map, HEADS[1], rows, new_kv_included=True, min_process_len=1024
    )
    output = torch.full((num_tokens, *q.shape[1:]), float("nan"), dtype=torch.bfloat16)
    options: dict[str, Any] = {
        "mtp": rows - 1,
        "new_kv_included": True,
        "splitk": True,
        "task_map": task_map,
        "output": output,
    }
    of_reference: dict[str, Any] = {}
    if dtype == E4M3:
        of_reference = {"q_scale": q_scale, "k_scale": scales[0], "v_scale": scales[1]}
        hpc.attention_decode_fp8(
            *(q, k_cache, v_cache, table, kv_lens, q_scale, *scales),
            quant_type=hpc.QuantType.QPERTOKEN_PERHEAD_KPERTENSOR_VPERTENSOR,
            split_flag=flag,
            **options,
        )
    else:
        hpc.attention_decode_bf16(q, k_cache, v_cache, table, kv_lens, **options)
    expected, _ = reference.paged_attention(
        q,
        k_cache,
        v_cache,
        page_table=table,
        cu_seqlens_q=batch.arguments["q_index"],
        kv_lens=kv_lens,
        scale=HEAD_DIM**-0.5,
        **of_reference,
    )
    assert_near(output, expected, 4.0, "decode")
