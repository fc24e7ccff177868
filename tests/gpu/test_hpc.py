# SPDX-License-Identifier: Apache-2.0
"""The drop-in `hpc` on a GPU: every call against float64, in CUDA graphs, on streams, no wait."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import hpcattn.integrations.hpc as hpc
import reference
from hpc_cases import (
    E4M3,
    Case,
    assert_near,
    assert_rounds_to,
    make_case,
    make_prologue,
    prefill_scales,
    stored,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

BF16, F16 = torch.bfloat16, torch.float16
DECODE = [(2, 2), (2, 40), (2, 17), (2, 3000)]
PREFILL = [(5, 5), (37, 60), (1, 90), (0, 12), (70, 330)]


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def without_waiting(call: Callable[[], Any]) -> Any:
    """A call that is made twice; the second time torch refuses whatever waits for the GPU."""
    call()
    torch.cuda.set_sync_debug_mode("error")
    try:
        return call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def task_map_of(case: Case, lengths: torch.Tensor, included: bool) -> torch.Tensor:
    kv_heads = case.k_cache.shape[2]
    task_map = hpc.get_attention_decode_task_workspace(8, 4096, kv_heads)
    assert task_map.is_cuda
    hpc.assign_attention_decode_task(lengths, task_map, kv_heads, case.rows, included)
    return task_map


@pytest.mark.parametrize("dtype", [BF16, F16, E4M3])
def test_decode_is_the_same_with_every_combination_of_arguments(dtype: torch.dtype) -> None:
    case = make_case("cuda", lengths=DECODE, dtype=dtype, heads=(8, 2), head_dim=128)
    out_dtype = BF16 if dtype == E4M3 else dtype
    first = None
    for included, splitk, tasks, given in itertools.product((False, True), repeat=4):
        options: dict[str, Any] = {"new_kv_included": included, "splitk": splitk}
        lengths = case.kv_lens if included else case.kv_lens - case.rows
        if tasks:
            options["task_map"] = task_map_of(case, lengths, included)
            options["split_flag"] = torch.zeros(4, 2, dtype=torch.int32, device="cuda")
        if given:
            options["output"] = torch.full(
                case.q.shape, float("nan"), dtype=out_dtype, device="cuda"
            )
        got = without_waiting(lambda options=options: case.decode(**options))
        case.check(got, str(options))
        first = got if first is None else first
        assert torch.equal(got, first), options


@pytest.mark.parametrize("rows", [1, 3, 9])
@pytest.mark.parametrize("layout", ["nhd", "hnd", "halves", "interleaved"])
def test_any_number_of_speculative_rows_and_any_layout(rows: int, layout: str) -> None:
    lengths = [(rows, rows), (rows, 33 + rows), (rows, 700)]
    case = make_case(
        "cuda", lengths=lengths, heads=(8, 1), head_dim=128, page_size=32, layout=layout
    )
    case.check(case.decode(new_kv_included=True), layout)


@pytest.mark.parametrize(("heads", "head_dim", "page_size"), [((5, 5), 80, 8), ((12, 1), 256, 64)])
def test_limits_of_the_interface_are_lifted(
    heads: tuple[int, int], head_dim: int, page_size: int
) -> None:
    shape: dict[str, Any] = {"heads": heads, "head_dim": head_dim, "page_size": page_size}
    case = make_case("cuda", lengths=[(1, 9), (1, 300)], **shape)
    case.check(case.decode(), "decode")


def test_a_row_of_a_graph_without_a_request() -> None:
    case = make_case("cuda", lengths=[(1, 20), (1, 1)], head_dim=128, padding=2)
    case.kv_lens[1] = 0
    got = case.decode(new_kv_included=True)
    assert torch.equal(got[1:], torch.zeros_like(got[1:]))


def test_a_scale_for_each_token_and_head_of_k() -> None:
    case = make_case("cuda", lengths=DECODE, dtype=E4M3, heads=(8, 2), head_dim=128, page_size=32)
    scales = torch.rand(case.k_cache.shape[:3], generator=torch.Generator().manual_seed(1)) + 0.5
    cpu = {name: scale.cpu() for name, scale in case.scales.items() if name != "k_scale"}
    expected, _ = reference.paged_attention(
        case.q.cpu(),
        case.k_cache.cpu().double() * scales.double()[..., None],
        case.v_cache.cpu(),
        page_table=case.block_ids.cpu(),
        cu_seqlens_q=case.cu_seqlens_q.cpu(),
        kv_lens=case.kv_lens.cpu(),
        scale=128**-0.5,
        **cpu,
    )
    by_head = scales.transpose(1, 2).contiguous().view(-1, 2, 1, 32).transpose(1, 2)
    case.scales["k_scale"] = by_head.contiguous().cuda().view(E4M3)
    got = without_waiting(lambda: case.decode(new_kv_included=True, quant_type=0))
    # K and q are rounded to bfloat16 there: the scores are off by about 2^-8 of themselves.
    assert_near(got, expected, 6 * case.v_max, "k scales by token")


@pytest.mark.parametrize("dtype", [BF16, F16, E4M3])
def test_prefill_over_pages(dtype: torch.dtype) -> None:
    case = make_case(
        "cuda", lengths=PREFILL, dtype=dtype, heads=(4, 1), head_dim=128, layout="halves", padding=2
    )
    pages = (case.q, case.k_cache, case.v_cache)
    batch = (case.cu_seqlens_q, case.block_ids, case.kv_lens, 130)
    if dtype == E4M3:
        qscale = prefill_scales(case.scales["q_scale"], [n for n, _ in PREFILL], 256)
        scales = (qscale, case.scales["k_scale"], case.scales["v_scale"])
        got = without_waiting(
            lambda: hpc.attention_with_kvcache_prefill_fp8(*pages, *scales, *batch)
        )
    else:
        got = without_waiting(lambda: hpc.attention_with_kvcache_prefill_bf16(*pages, *batch))
    case.check(got, "prefill", prompts=True)


def test_prefill_without_pages() -> None:
    starts = torch.tensor([0, 7, 7, 40, 110], dtype=torch.int32)
    q, k, v = (torch.randn(110, h, 128).bfloat16() for h in (4, 2, 2))
    tensors = [t.cuda() for t in (q, k, v, starts.diff(), starts)]
    got = without_waiting(lambda: hpc.attention_prefill_bf16(*tensors, 70))
    expected, _ = reference.packed_attention(
        q, k, v, cu_seqlens_q=starts, cu_seqlens_k=starts, scale=128**-0.5
    )
    assert_near(got, expected, float(v.abs().max()), "packed")


@pytest.mark.parametrize("prefill", [True, False])
@pytest.mark.parametrize("policy", [0, 1, 2])
@pytest.mark.parametrize("to_pages", [True, False])
def test_rope(policy: int, prefill: bool, to_pages: bool) -> None:
    lengths = PREFILL if prefill else [(1, n) for n in range(1, 257)]
    batch = make_prologue("cuda", lengths=lengths, head_dim=128)
    weights: dict[str, Any] = {}
    if policy:
        weights = {w: torch.rand(128, device="cuda") for w in ("q_norm_weight", "k_norm_weight")}
    outs: dict[str, Any] = {}
    if not to_pages:
        outs = {name: torch.empty(batch.k.shape, dtype=BF16, device="cuda") for name in KV}
    q = without_waiting(
        lambda: hpc.rope_norm_store_kv(
            **batch.arguments, is_prefill=prefill, qk_norm_policy=policy, **weights, **outs
        )
    )
    caches = [batch.arguments[name] for name in ("key_cache", "value_cache")]
    k, v = [stored(c, batch.slots) for c in caches] if to_pages else [outs[name] for name in KV]
    assert to_pages or all(bool(c.isnan().all()) for c in caches)
    assert_rounds_to(q, batch.expected(batch.q, policy, weights.get("q_norm_weight")), "q")
    assert_rounds_to(k, batch.expected(batch.k, policy, weights.get("k_norm_weight")), "K")
    assert torch.equal(v.cpu(), batch.v)


KV = ("out_k", "out_v")


@pytest.mark.parametrize("prefill", [True, False])
@pytest.mark.parametrize("quant_policy", [1, 2])
@pytest.mark.parametrize("to_pages", [True, False])
def test_rope_fp8(quant_policy: int, prefill: bool, to_pages: bool) -> None:
    lengths = PREFILL if prefill else [(1, 1), (1, 64), (1, 77)]
    batch = make_prologue("cuda", lengths=lengths, head_dim=128, kv_dtype=E4M3)
    scales = [torch.full((1,), value, device="cuda") for value in (0.75, 1.25)]
    options: dict[str, Any] = {"max_seqlens": 130}
    if quant_policy == 2:
        options["q_scale_inv"] = torch.full((1,), 3.0, device="cuda")
    if not to_pages:
        options |= {name: torch.empty(batch.k.shape, dtype=E4M3, device="cuda") for name in KV}
    q, q_scale, flag = without_waiting(
        lambda: hpc.rope_norm_store_kv_fp8(
            *batch.arguments.values(), prefill, *scales, quant_policy, **options
        )
    )
    assert int(flag.abs().sum()) == 0
    expected = batch.expected(batch.q, 0, None)
    if quant_policy == 2:
        assert q_scale.numel() == 0
        assert_rounds_to(q, expected * 3.0, "q")
    else:
        amax = expected.abs().amax(-1).float() / 448
        if prefill:
            start = 0
            for r, n in enumerate(batch.lengths):
                rows = amax[start : start + n].T
                torch.testing.assert_close(q_scale[r, :, :n].cpu(), rows, rtol=1e-5, atol=0)
                start += n
        else:
            torch.testing.assert_close(q_scale.cpu(), amax, rtol=1e-5, atol=0)
        assert_rounds_to(q, expected / amax.double()[..., None], "q")
    caches = [batch.arguments[name] for name in ("key_cache", "value_cache")]
    k, v = [stored(c, batch.slots) for c in caches] if to_pages else [options[name] for name in KV]
    assert_rounds_to(k, batch.expected(batch.k, 0, None) / 0.75, "K")
    assert_rounds_to(v, batch.v.double() / 1.25, "V")
