# SPDX-License-Identifier: Apache-2.0
"""The drop-in's attention calls against float64, in all combinations of their arguments."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import hpcattn.integrations.hpc as hpc
import reference
from hpc_cases import E4M3, Case, assert_near, make_case, prefill_scales

DECODE = [(2, 2), (2, 40), (2, 17), (2, 129)]


def task_map_of(case: Case, lengths: torch.Tensor, included: bool) -> torch.Tensor:
    kv_heads = case.k_cache.shape[2]
    task_map = hpc.get_attention_decode_task_workspace(8, 4096, kv_heads, min_process_len=1024)
    assert task_map.dtype == torch.int8
    got = hpc.assign_attention_decode_task(
        lengths, task_map, kv_heads, case.rows, new_kv_included=included, min_process_len=1024
    )
    assert got is task_map
    return task_map


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, E4M3])
def test_decode_is_the_same_with_every_combination_of_arguments(dtype: torch.dtype) -> None:
    case = make_case(lengths=DECODE, dtype=dtype, heads=(8, 2), head_dim=64)
    out_dtype = torch.bfloat16 if dtype == E4M3 else dtype
    first = None
    combinations = itertools.product(
        (False, True), (False, True), (None, "device", "other"), (False, True), (False, True)
    )
    for included, splitk, tasks, flag, given in combinations:
        options: dict[str, Any] = {"new_kv_included": included, "splitk": splitk}
        lengths = case.kv_lens if included else case.kv_lens - case.rows
        if tasks == "device":
            options["task_map"] = task_map_of(case, lengths, included)
        elif tasks == "other":  # not ours, and nobody assigned it
            options["task_map"] = torch.zeros(64, dtype=torch.int8)
        if flag:
            options["split_flag"] = torch.zeros(4, 2, dtype=torch.int32)
        if given:
            options["output"] = torch.full(case.q.shape, float("nan"), dtype=out_dtype)
        got = case.decode(**options)
        assert got.dtype == out_dtype
        assert not given or got is options["output"]
        case.check(got, str(options))
        first = got if first is None else first
        assert torch.equal(got, first), options


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("layout", ["nhd", "hnd", "halves", "interleaved"])
def test_any_number_of_speculative_rows_and_any_layout(rows: int, layout: str) -> None:
    lengths = [(rows, rows), (rows, 33 + rows), (rows, 100)]
    case = make_case(lengths=lengths, heads=(8, 1), head_dim=128, page_size=32, layout=layout)
    case.check(case.decode(new_kv_included=True), layout)


@pytest.mark.parametrize(("heads", "head_dim", "page_size"), [((5, 5), 80, 8), ((12, 1), 256, 64)])
def test_limits_of_the_interface_are_lifted(
    heads: tuple[int, int], head_dim: int, page_size: int
) -> None:
    case = make_case(
        lengths=[(1, 9), (1, 300)], heads=heads, head_dim=head_dim, page_size=page_size
    )
    case.check(case.decode(), "decode")


def test_rows_of_padding_and_requests_of_length_0() -> None:
    case = make_case(lengths=[(1, 9), (1, 40)], padding=3)
    case.check(case.decode(new_kv_included=True), "padding")
    empty = make_case(lengths=[(1, 20), (1, 1)])
    empty.kv_lens[1] = 0  # a graph's row without a request
    got = empty.decode(new_kv_included=True)
    assert torch.equal(got[1], torch.zeros_like(got[1]))


def test_no_requests() -> None:
    case = make_case(lengths=[(1, 9)])
    case.q, case.kv_lens, case.block_ids = case.q[:0], case.kv_lens[:0], case.block_ids[:0]
    assert case.decode(new_kv_included=True).shape == (0, 4, 64)


def test_a_task_map_serves_many_layers_and_follows_each_assignment() -> None:
    case = make_case(lengths=DECODE, heads=(8, 2))
    task_map = task_map_of(case, case.kv_lens, True)
    whole = case.decode(new_kv_included=True, task_map=task_map)
    assert torch.equal(whole, case.decode(new_kv_included=True, task_map=task_map))
    # Other lengths in the same tensor, after an assignment, and even without one.
    case.kv_lens.copy_(torch.tensor([2, 30, 16, 70], dtype=torch.int32))
    alone = case.decode(new_kv_included=True)
    assert not torch.equal(alone, whole)
    assert torch.equal(alone, case.decode(new_kv_included=True, task_map=task_map))
    hpc.assign_attention_decode_task(case.kv_lens, task_map, 2, 2, True)
    assert torch.equal(alone, case.decode(new_kv_included=True, task_map=task_map))


def test_a_task_map_may_be_shared_by_unlike_layers() -> None:
    cases = [make_case(lengths=DECODE, heads=(8, 2), head_dim=d) for d in (64, 128)]
    task_map = task_map_of(cases[0], cases[0].kv_lens, True)
    for case in (*cases, *cases):
        case.check(case.decode(new_kv_included=True, task_map=task_map), "shared map")


def test_scales_per_head_and_without_dims() -> None:
    case = make_case(lengths=DECODE, dtype=E4M3, heads=(8, 2), per_head_scales=True)
    case.check(case.decode(), "per head")
    case = make_case(lengths=DECODE, dtype=E4M3, heads=(8, 2))
    got = case.decode()
    case.scales["k_scale"] = case.scales["k_scale"].reshape(())
    case.scales["v_scale"] = case.scales["v_scale"].reshape(())
    case.scales["q_scale"] = torch.cat([case.scales["q_scale"], torch.full((5, 8), float("nan"))])
    assert torch.equal(case.decode(), got), "a longer buffer of scales"


def page_scales(scales: torch.Tensor, head_dim: int, as_bytes: bool) -> torch.Tensor:
    """[pages, page_size, heads] float32 in the interface's form, rows of a page."""
    num_pages, page_size, heads = scales.shape
    columns = head_dim // 4
    by_head = scales.transpose(1, 2).contiguous()  # a head's page_size floats lie together
    rows = by_head.view(num_pages, heads, page_size // columns, columns).transpose(1, 2)
    return rows.contiguous().view(E4M3) if as_bytes else rows.contiguous()


@pytest.mark.parametrize("as_bytes", [True, False])
@pytest.mark.parametrize("given", [True, False])
def test_decode_with_a_scale_for_each_token_and_head_of_k(as_bytes: bool, given: bool) -> None:
    case = make_case(
        lengths=DECODE, dtype=E4M3, heads=(8, 2), head_dim=64, page_size=32, per_head_scales=True
    )
    shape = case.k_cache.shape[:3]
    scales = torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.5
    real_k = case.k_cache.double() * scales.double()[..., None]
    expected, _ = reference.paged_attention(
        case.q,
        real_k,
        case.v_cache,
        page_table=case.block_ids,
        cu_seqlens_q=case.cu_seqlens_q,
        kv_lens=case.kv_lens,
        scale=64**-0.5,
        q_scale=case.scales["q_scale"],
        v_scale=case.scales["v_scale"],
    )
    case.scales["k_scale"] = page_scales(scales, 64, as_bytes)
    output = torch.empty(case.q.shape, dtype=torch.bfloat16) if given else None
    task_map = task_map_of(case, case.kv_lens, True)
    got = case.decode(new_kv_included=True, quant_type=0, output=output, task_map=task_map)
    assert got.dtype == torch.bfloat16
    assert not given or got is output
    assert_near(got, expected, case.v_max, "k scales by token")


@pytest.mark.parametrize("quant_type", [0, 1, hpc.QuantType(1)])
def test_other_quant_types_with_scales_per_tensor(quant_type: Any) -> None:
    case = make_case(lengths=DECODE, dtype=E4M3, heads=(8, 2))
    case.check(case.decode(quant_type=quant_type), "quant type")
    case.scales["q_scale"] = torch.full((1,), 0.5)
    batch = {"page_table": case.block_ids, "cu_seqlens_q": case.cu_seqlens_q}
    expected, _ = reference.paged_attention(
        case.q,
        case.k_cache,
        case.v_cache,
        **batch,
        kv_lens=case.kv_lens,
        scale=64**-0.5,
        **case.scales,
    )
    assert_near(case.decode(quant_type=2), expected, case.v_max, "per tensor")


PREFILL = [(5, 5), (37, 60), (1, 90), (0, 12), (130, 130)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("given", [True, False])
def test_prefill_over_pages(dtype: torch.dtype, given: bool) -> None:
    case = make_case(lengths=PREFILL, dtype=dtype, heads=(8, 2), layout="halves", padding=2)
    output = torch.full(case.q.shape, float("nan"), dtype=dtype) if given else None
    got = hpc.attention_with_kvcache_prefill_bf16(
        *(case.q, case.k_cache, case.v_cache, case.cu_seqlens_q, case.block_ids, case.kv_lens),
        130,
        output=output,
    )
    assert not given or got is output
    case.check(got, "prefill")


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("width", [130, 256])
def test_prefill_fp8_takes_scales_by_request(width: int, given: bool) -> None:
    case = make_case(lengths=PREFILL, dtype=E4M3, heads=(8, 2), padding=2)
    qscale = prefill_scales(case.scales["q_scale"], [n for n, _ in PREFILL], width)
    output = torch.full(case.q.shape, float("nan"), dtype=torch.bfloat16) if given else None
    got = hpc.attention_with_kvcache_prefill_fp8(
        *(case.q, case.k_cache, case.v_cache, qscale),
        *(case.scales["k_scale"], case.scales["v_scale"]),
        *(case.cu_seqlens_q, case.block_ids, case.kv_lens, 130),
        output=output,
    )
    assert not given or got is output
    case.check(got, "prefill fp8")


def test_prefill_fp8_with_a_scale_for_each_token_and_head_of_k() -> None:
    case = make_case(lengths=PREFILL, dtype=E4M3, heads=(8, 2), page_size=32, padding=2)
    scales = torch.rand(case.k_cache.shape[:3], generator=torch.Generator().manual_seed(1)) + 0.5
    others = {name: scale for name, scale in case.scales.items() if name != "k_scale"}
    expected, _ = reference.paged_attention(
        case.q,
        case.k_cache.double() * scales.double()[..., None],
        case.v_cache,
        page_table=case.block_ids,
        cu_seqlens_q=case.cu_seqlens_q,
        kv_lens=case.kv_lens,
        scale=case.q.shape[2] ** -0.5,
        **others,
    )
    qscale = prefill_scales(case.scales["q_scale"], [n for n, _ in PREFILL], 256)
    by_head = scales.transpose(1, 2).contiguous().view(-1, 2, 1, 32).transpose(1, 2)
    got = hpc.attention_with_kvcache_prefill_fp8(
        *(case.q, case.k_cache, case.v_cache, qscale, by_head.contiguous().view(E4M3)),
        *(case.scales["v_scale"], case.cu_seqlens_q, case.block_ids, case.kv_lens, 130),
        quant_type=0,
    )
    assert_near(got, expected, case.v_max, "k scales by token, prefill")


@pytest.mark.parametrize("given", [True, False])
def test_prefill_without_pages(given: bool) -> None:
    lengths = [7, 0, 64, 1]
    starts = torch.tensor([0, 7, 7, 71, 72], dtype=torch.int32)
    q, k, v = (torch.randn(72, h, 64).bfloat16() for h in (8, 2, 2))
    output = torch.empty_like(q) if given else None
    got = hpc.attention_prefill_bf16(
        q, k, v, torch.tensor(lengths, dtype=torch.int32), starts, 64, output=output
    )
    assert not given or got is output
    expected, _ = reference.packed_attention(
        q, k, v, cu_seqlens_q=starts, cu_seqlens_k=starts, scale=64**-0.5
    )
    assert_near(got, expected, float(v.abs().max()), "packed")
