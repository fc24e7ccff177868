# SPDX-License-Identifier: Apache-2.0
"""Every operator on a GPU by torch, beside the CPU's on the same inputs; refusals; devices.

The float64 reference and the whole cross of features are the C++ suite's matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from gpu_batches import (
    BF16,
    E4M3,
    E5M2,
    F16,
    F32,
    MIXED,
    assert_near,
    gpu_batch,
    on_gpu,
    same_bits,
)

import hpcattn
from batches import LAYOUTS, cumulative, int32, make_batch
from calls import CALLS, Arguments, change, merge, packed, paged, rope, store, strided

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

OPS = torch.ops.hpcattn


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def options_of(num_heads: int, **feature: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    options: dict[str, Any] = {"scale": 0.087, **feature}
    if options.get("alibi_slopes"):
        options["alibi_slopes"] = torch.rand(num_heads, generator=generator) * 0.5
    if options.get("sinks"):
        options["sinks"] = torch.randn(num_heads, generator=generator)
    return options


def eps_of(q_dtype: torch.dtype) -> float:
    # Prompts of e4m3 round P to e4m3 too, on Hopper.
    return {F16: 2.0**-10, BF16: 2.0**-7, E4M3: 2.0**-4}[q_dtype]


ALL = {"window": 90, "softcap": 5.0, "alibi_slopes": True, "sinks": True}
CASES = [
    ({}, BF16, BF16),
    (ALL, BF16, BF16),
    ({"softcap": 3.0}, F16, F16),
    ({"window": 70}, BF16, E4M3),
    ({"causal": False, "window": 50}, F16, E5M2),
    ({"sinks": True}, E4M3, E4M3),
    ({"alibi_slopes": True, "causal": False}, F16, E4M3),
]


@pytest.mark.parametrize(("feature", "q_dtype", "kv_dtype"), CASES)
def test_paged_attention(
    feature: dict[str, Any], q_dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    scales = {"per_head_scales": "window" in feature}
    dtypes = {"q_dtype": q_dtype, "kv_dtype": kv_dtype}
    batch = make_batch(lengths=MIXED, heads=(8, 2), padding=2, **dtypes, **scales)
    options = {**options_of(8, **feature), "return_lse": True}
    tensors, arguments = batch.paged()
    expected, expected_lse = hpcattn.paged_attention(*tensors, **arguments, **options)
    gpu_tensors, gpu_arguments = on_gpu(batch).paged()
    gpu_options = on_gpu(options)
    out, lse = hpcattn.paged_attention(*gpu_tensors, **gpu_arguments, **gpu_options)
    assert_near(out, expected, "out", eps_of(q_dtype))
    assert_near(lse, expected_lse, "lse", 2.0**-9)
    group = hpcattn.AttentionGroup.of(
        gpu_tensors[0],
        gpu_tensors[1],
        causal=feature.get("causal", True),
        window=feature.get("window"),
    )
    lengths = (gpu_arguments["cu_seqlens_q"], gpu_arguments["kv_lens"])
    plan = hpcattn.plan_attention(group, *lengths, num_tokens=batch.q.size(0))
    planned, _ = hpcattn.paged_attention(*gpu_tensors, **gpu_arguments, **gpu_options, plan=plan)
    assert same_bits(planned, out)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_carry_the_layout(layout: str) -> None:
    batch = make_batch(lengths=MIXED, heads=(8, 2), q_dtype=BF16, head_dim=128, layout=layout)
    tensors, arguments = batch.paged()
    expected = hpcattn.paged_attention(*tensors, **arguments, scale=0.088)
    tensors, arguments = on_gpu(batch).paged()
    out = torch.full((2 * batch.q.size(0), 8, 128), 5.0, dtype=BF16, device="cuda")
    hpcattn.paged_attention(*tensors, **arguments, scale=0.088, out=out[::2])
    assert_near(out[::2], expected, layout, eps_of(BF16))
    assert bool((out[1::2] == 5).all())


def test_fixed_split_has_one_result_alone_and_in_a_batch() -> None:
    batch = gpu_batch(lengths=[(1, 2000), (1, 77), (2, 900)], heads=(8, 2))
    group = hpcattn.AttentionGroup.of(batch.q, batch.k_cache)
    (q, *caches), arguments = batch.paged()
    lengths = (batch.cu_seqlens_q, batch.kv_lens)
    split: dict[str, Any] = {"fixed_split": 256}
    plan = hpcattn.plan_attention(group, *lengths, **split)
    together = hpcattn.paged_attention(q, *caches, **arguments, scale=0.1, plan=plan, **split)
    inside = hpcattn.paged_attention(q, *caches, **arguments, scale=0.1, **split)
    assert same_bits(inside, together)
    alone = {
        "page_table": batch.page_table[:1],
        "cu_seqlens_q": batch.cu_seqlens_q[:2],
        "kv_lens": batch.kv_lens[:1],
    }
    lengths = (alone["cu_seqlens_q"], alone["kv_lens"])
    plan = hpcattn.plan_attention(group, *lengths, **split, num_tokens=1, max_kv_len=4096)
    out = hpcattn.paged_attention(q[:1], *caches, **alone, scale=0.1, plan=plan, **split)
    assert same_bits(out, together[:1])


def test_a_plan_says_what_it_was_made_for() -> None:
    batch = gpu_batch(lengths=MIXED, heads=(8, 2))
    group = hpcattn.AttentionGroup.of(batch.q, batch.k_cache, window=200)
    plan = hpcattn.plan_attention(group, batch.cu_seqlens_q, batch.kv_lens)
    limits = {"max_requests": len(MIXED), "max_tokens": batch.q.size(0)}
    assert plan.is_cuda
    assert plan.numel() == hpcattn.plan_words(group, **limits, device="cuda")
    summary = hpcattn.plan_summary(plan)
    assert (summary["num_requests"], summary["num_tokens"]) == (len(MIXED), batch.q.size(0))
    assert (summary["group"]["window"], summary["group"]["q_dtype"]) == (200, "bfloat16")
    assert summary["num_tasks"] > 0


def test_packed_attention_of_an_encoder() -> None:
    q, k, v = (torch.randn(150, heads, 64).half() for heads in (6, 2, 2))
    lengths = {"cu_seqlens_q": cumulative([100, 0, 50]), "cu_seqlens_k": cumulative([100, 0, 50])}
    options = {"scale": 0.125, "causal": False, "return_lse": True}
    expected = hpcattn.packed_attention(q, k, v, **lengths, **options)
    got = hpcattn.packed_attention(*on_gpu([q, k, v]), **on_gpu(lengths), **options)
    assert_near(got[0], expected[0], "out", eps_of(F16))
    assert_near(got[1], expected[1], "lse", 2.0**-9)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_merge_partials(dtype: torch.dtype) -> None:
    partials = [torch.randn(70, 5, 96).to(dtype) for _ in range(3)]
    lses = [torch.randn(70, 5) * 4 for _ in range(3)]
    lses[1][::3] = -math.inf
    lses[0][::6] = lses[2][::6] = -math.inf
    partials[1][::3] = math.nan
    expected = hpcattn.merge_partials(partials, lses)
    got = hpcattn.merge_partials(on_gpu(partials), on_gpu(lses))
    assert_near(got[0], expected[0], "out", 1e-6)
    assert_near(got[1], expected[1], "lse", 1e-6)


@pytest.mark.parametrize("cache_dtype", [None, E4M3, E5M2])
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_store_kv_has_the_bits_of_the_cpu(
    dtype: torch.dtype, cache_dtype: torch.dtype | None
) -> None:
    batch = make_batch(lengths=[(1, 40)], q_dtype=dtype, kv_dtype=cache_dtype or dtype)
    k, v = (torch.randn(21, 2, 64).to(dtype) for _ in range(2))
    slots = torch.randperm(batch.k_cache.size(0) * 16)[:19]
    slots[5] = -1
    scales = {}
    if cache_dtype is not None:
        scales = {"k_scale": torch.tensor([0.3, 0.7]), "v_scale": torch.tensor([0.2])}
    cpu = (k, v, batch.k_cache, batch.v_cache, slots)
    gpu = on_gpu(list(cpu))
    hpcattn.store_kv(*cpu, **scales)
    hpcattn.store_kv(*gpu, **on_gpu(scales))
    assert same_bits(gpu[2].cpu(), batch.k_cache)
    assert same_bits(gpu[3].cpu(), batch.v_cache)


@pytest.mark.parametrize("style", ["neox", "interleaved"])
@pytest.mark.parametrize(
    ("dtype", "fp8"), [(F32, False), (F16, False), (BF16, False), (BF16, True)]
)
def test_rope_norm_store_kv(dtype: torch.dtype, fp8: bool, style: Any) -> None:
    lengths = [(1, 37), (5, 5), (3, 60), (0, 0)]
    cache_dtype = E4M3 if fp8 else dtype
    batch = make_batch(lengths=lengths, heads=(8, 2), q_dtype=dtype, kv_dtype=cache_dtype)
    qkv = torch.randn(9, 12, 64).to(dtype)
    angles = torch.arange(64)[:, None] * (0.8 ** torch.arange(16))[None]
    arguments: dict[str, Any] = {
        "cos_sin": torch.cat([angles.cos(), angles.sin()], -1),
        "cu_seqlens_q": batch.cu_seqlens_q,
        "kv_lens": batch.kv_lens,
        "page_table": batch.page_table,
        "k_cache": batch.k_cache,
        "v_cache": batch.v_cache,
        "norm_policy": "norm_then_rope",
        "q_norm_weight": torch.rand(64).to(dtype) + 0.5,
        "k_norm_weight": torch.rand(64).to(dtype) + 0.5,
        "norm_eps": 1e-6,
        "style": style,
    }
    if fp8:
        scales = {"k_scale": torch.tensor([0.02]), "v_scale": torch.tensor([0.03, 0.02])}
        arguments |= {**scales, "out_q_dtype": E4M3}
    gpu_arguments, gpu_qkv = on_gpu(arguments), on_gpu(qkv)
    expected, expected_scale = hpcattn.rope_norm_store_kv(*qkv.split([8, 2, 2], 1), **arguments)
    got, scale = hpcattn.rope_norm_store_kv(*gpu_qkv.split([8, 2, 2], 1), **gpu_arguments)
    assert_near(got, expected, "out_q", 1e-6)
    if fp8:
        assert_near(scale, expected_scale, "out_q_scale", 1e-6)
    for name in ("k_cache", "v_cache"):
        got, expected = gpu_arguments[name].float(), arguments[name].float()
        assert torch.equal(got.isnan().cpu(), expected.isnan()), name
        assert_near(got.nan_to_num(), expected.nan_to_num(), name, 1e-6, cache_dtype)


# --- refusals ---


def in_bfloat16(arguments: Arguments) -> Arguments:
    """Attention's float32 q, K, V and out as bfloat16: float32 is the CPU's alone."""
    names = ("q", "k", "v", "k_cache", "v_cache", "out")
    wide = {n: arguments[n].to(BF16) for n in names if n in arguments}
    return {**arguments, **wide}


def gpu_call(build: Callable[[], Arguments]) -> Arguments:
    arguments = build()
    return on_gpu(in_bfloat16(arguments) if build in (paged, packed) else arguments)


OUTPUTS = ("out", "k_cache", "v_cache", "out_q")
MISTAKES = [
    (paged, change(q=strided), ValueError, "q has stride 2 in its last dim"),
    (paged, change(k_cache=lambda t: t[:, :12]), ValueError, "v_cache is .* expected shape"),
    (paged, change(out=lambda t: t[:2]), ValueError, r"out is bfloat16\[2, 4, 64\] on cuda:0"),
    (paged, change(scale=math.nan), ValueError, "scale is nan"),
    (paged, change(window=0), ValueError, "window is 0"),
    (
        paged,
        change(k_scale=lambda _: torch.ones(1).cuda()),
        ValueError,
        "k_scale is given and k_cache is",
    ),
    (paged, change(page_table=lambda t: t.long()), ValueError, "page_table has dtype int64"),
    (paged, change(kv_lens=lambda t: t[:1]), ValueError, "cu_seqlens_q|page_table"),
    (paged, change(kv_lens=int32([20, 9])), ValueError, "kv_lens is on cpu, expected cuda:0"),
    (
        paged,
        change(q=lambda t: t.cpu()),
        ValueError,
        r"k_cache is on cuda:0, expected cpu \(where q",
    ),
    (paged, change(q=lambda t: t.float()), NotImplementedError, "q has dtype float32"),
    (packed, change(v=lambda t: t[:5]), ValueError, "v is .* expected shape"),
    (packed, change(cu_seqlens_k=lambda t: t[:2]), ValueError, "cu_seqlens"),
    (merge, change(partials=[]), ValueError, "partials is empty"),
    (merge, change(lses=lambda ts: [ts[0], ts[1].cpu()]), ValueError, r"lses\[1\] is on cpu"),
    (store, change(slot_mapping=lambda t: t.float()), ValueError, "slot_mapping has dtype float32"),
    (store, change(v=lambda t: t[:1]), ValueError, "v is .* expected shape"),
    (rope, change(cos_sin=lambda t: t[:, :7]), ValueError, "cos_sin has"),
    (rope, change(norm_policy="norm_then_rope"), ValueError, "norm_eps|q_norm_weight"),
]


@pytest.mark.parametrize(
    ("build", "spoil", "kind", "text"),
    MISTAKES,
    ids=[f"{b.__name__}-{t}" for b, _, _, t in MISTAKES],
)
def test_a_refused_call_writes_nothing(build: Any, spoil: Any, kind: Any, text: str) -> None:
    arguments = gpu_call(build)
    CALLS[build](**gpu_call(build))
    written = {name: arguments[name] for name in OUTPUTS if name in arguments}
    before = {name: tensor.clone() for name, tensor in written.items()}
    launched = hpcattn.kernels()
    spoil(arguments)
    with pytest.raises(kind, match=text):
        CALLS[build](**arguments)
    assert hpcattn.kernels() == launched
    for name, tensor in written.items():
        assert same_bits(tensor, before[name]), name


def test_values_are_checked_where_asked_for() -> None:
    before = hpcattn.set_check_values(True)
    try:
        assert hpcattn.set_check_values(True)
        arguments = gpu_call(paged)
        hpcattn.paged_attention(**arguments)
        arguments["out"].fill_(7.0)
        mistakes = {
            "page_table": torch.full_like(arguments["page_table"], 10**6),
            "kv_lens": torch.full_like(arguments["kv_lens"], 10**6),
            "cu_seqlens_q": arguments["cu_seqlens_q"].flip(0),
        }
        for name, value in mistakes.items():
            with pytest.raises(ValueError, match=name):
                hpcattn.paged_attention(**{**arguments, name: value})
        assert bool((arguments["out"] == 7).all())
        s = on_gpu(store())
        with pytest.raises(ValueError, match=r"slot_mapping\[1\] is 99999"):
            hpcattn.store_kv(**{**s, "slot_mapping": torch.tensor([1, 99999]).cuda()})
    finally:
        hpcattn.set_check_values(before)


def test_the_current_device_stays() -> None:
    count = torch.cuda.device_count()
    device = f"cuda:{count - 1}"
    batch = make_batch(lengths=[(1, 40), (2, 9)], q_dtype=BF16, head_dim=128)
    tensors, arguments = batch.paged()
    expected = hpcattn.paged_attention(*tensors, **arguments, scale=0.1)
    tensors, arguments = on_gpu(batch, device).paged()
    assert torch.cuda.current_device() == 0
    out = hpcattn.paged_attention(*tensors, **arguments, scale=0.1)
    assert (out.device, torch.cuda.current_device()) == (torch.device(device), 0)
    assert_near(out, expected, device, eps_of(BF16))
    with pytest.raises(ValueError, match="window is 0"):
        hpcattn.paged_attention(*tensors, **arguments, scale=0.1, window=0)
    assert torch.cuda.current_device() == 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_on_two_gpus_are_refused() -> None:
    arguments = gpu_call(paged)
    arguments["k_cache"] = arguments["k_cache"].to("cuda:1")
    with pytest.raises(ValueError, match=r"k_cache is on cuda:1, expected cuda:0 \(where q is\)"):
        hpcattn.paged_attention(**arguments)


def test_opcheck() -> None:
    batch = gpu_batch(lengths=[(2, 20), (1, 9)])
    caches = (batch.k_cache.nan_to_num(), batch.v_cache.nan_to_num())
    lengths = (batch.page_table, batch.cu_seqlens_q, batch.kv_lens)
    out, lse = torch.empty_like(batch.q), torch.empty(3, 4, device="cuda")
    op = OPS.paged_attention.default
    torch.library.opcheck(op, (batch.q, *caches, *lengths, out, lse), {"scale": 0.1, "window": 9})
    k = torch.randn(3, 2, 128, device="cuda").to(BF16)
    slots = torch.arange(3, device="cuda")
    torch.library.opcheck(OPS.store_kv.default, (k, k, *caches, slots))
