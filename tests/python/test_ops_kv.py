# SPDX-License-Identifier: Apache-2.0
"""Stores, the fused prologue, merging and the plan, by torch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hpcattn
import reference
from batches import (
    FP8,
    LAYOUTS,
    assert_close,
    caches,
    cumulative,
    int32,
    make_batch,
    nan_like,
    random,
)

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
E4M3, E5M2 = FP8
WIDE = [F32, F16, BF16]


def clamped(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What a float8 store saturates at."""
    return x.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max) if dtype in FP8 else x


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the bytes, in which NaN equals NaN."""
    return tensor.contiguous().view(torch.uint8).clone()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("cache_dtype", ["same", E4M3, E5M2])
@pytest.mark.parametrize("dtype", WIDE)
def test_store(dtype: torch.dtype, cache_dtype: Any, layout: str) -> None:
    generator = torch.Generator().manual_seed(1)
    cache_dtype = dtype if cache_dtype == "same" else cache_dtype
    kv = random((7, 2, 3, 64), dtype, generator) * 200
    k, v = kv[:, 0], kv[:, 1]
    k_cache, v_cache = caches(3, 8, 3, 64, cache_dtype, layout)
    before = bits(k_cache)
    slots = torch.tensor([5, 23, -1, 0, 9], dtype=torch.int64)  # two rows of padding follow
    scales = {}
    if cache_dtype in FP8:
        scales = {"k_scale": torch.tensor([0.2, 1.0, 2.5]), "v_scale": torch.tensor([0.3])}
    hpcattn.store_kv(k, v, k_cache, v_cache, slots, **scales)
    written = torch.zeros(3, 8, dtype=torch.bool)
    for token, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        written[slot // 8, slot % 8] = True
        for cache, new, name in ((k_cache, k, "k_scale"), (v_cache, v, "v_scale")):
            stored = cache[slot // 8, slot % 8]
            scale = scales.get(name, torch.ones(1)).double().expand(3)[:, None]
            expected = clamped(new[token].double() / scale, cache_dtype)
            assert_close(stored, expected, f"{name[0]} of token {token}", magnitude=0)
    rows = bits(k_cache).reshape(3, 8, -1)[~written]
    untouched = before.reshape(3, 8, -1)[~written]
    assert torch.equal(rows, untouched), "a slot that was not named changed"


def cos_sin_table(rotary_dim: int, dtype: torch.dtype = F32, length: int = 100) -> torch.Tensor:
    angles = torch.arange(length)[:, None] * (0.8 ** torch.arange(rotary_dim // 2))[None]
    return torch.cat([angles.cos(), angles.sin()], -1).to(dtype)


class Layer:
    """q, k and v as views of one packed tensor, and the places of two requests of 4 and 3
    tokens."""

    def __init__(self, dtype: torch.dtype, heads: tuple[int, int] = (4, 2), head_dim: int = 64):
        generator = torch.Generator().manual_seed(2)
        num_heads, num_kv = heads
        qkv = random((7, num_heads + 2 * num_kv, head_dim), dtype, generator)
        self.q, self.k, self.v = qkv.split([num_heads, num_kv, num_kv], 1)
        self.positions = torch.tensor([3, 4, 5, 6, 9, 10, 11])
        self.lengths = {"cu_seqlens_q": cumulative([4, 3]), "kv_lens": int32([7, 12])}
        # Pages that hold none of the new tokens are not looked at.
        self.page_table = torch.tensor([[2, 9999], [9999, 3]], dtype=torch.int32)
        self.slots = torch.tensor([19, 20, 21, 22, 25, 26, 27])


@pytest.mark.parametrize("style", ["neox", "interleaved"])
@pytest.mark.parametrize("policy", ["none", "rope_then_norm", "norm_then_rope"])
@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("cache_dtype", ["same", E4M3, E5M2, None])
def test_prologue(dtype: torch.dtype, policy: str, style: str, cache_dtype: Any) -> None:
    layer = Layer(dtype)
    cache_dtype = dtype if cache_dtype == "same" else cache_dtype
    arguments: dict[str, Any] = dict(layer.lengths)
    norm: dict[str, Any] = {"norm_policy": policy}
    weights = (None, None)
    if policy != "none":
        weights = (torch.rand(64).to(BF16), torch.rand(64).to(F16))
        norm |= {"q_norm_weight": weights[0], "k_norm_weight": weights[1], "norm_eps": 1e-5}
    if cache_dtype is not None:
        k_cache, v_cache = caches(4, 8, 2, 64, cache_dtype, "hnd")
        arguments |= {"k_cache": k_cache, "v_cache": v_cache, "page_table": layer.page_table}
    if cache_dtype in FP8:
        arguments |= {"k_scale": torch.tensor([0.1, 0.02]), "v_scale": torch.tensor([0.5])}
    out_k = torch.empty(7, 2, 64, dtype=dtype)
    table = cos_sin_table(48, BF16)  # the last 16 dims pass through
    call = {**arguments, **norm, "style": style, "out_k": out_k}
    out_q, out_q_scale = hpcattn.rope_norm_store_kv(layer.q, layer.k, layer.v, table, **call)
    assert out_q_scale is None
    eps = norm.get("norm_eps")
    expected = [
        reference.rope_norm(
            x, table, layer.positions, style=style, norm_policy=policy, weight=weight, eps=eps
        )
        for x, weight in zip((layer.q, layer.k), weights, strict=True)
    ]
    assert_close(out_q, expected[0], "out_q")
    assert_close(out_k, expected[1], "out_k")
    counters = torch.full((3, 2), 7, dtype=torch.int32)
    hpcattn.rope_norm_store_kv(layer.q, layer.k, layer.v, table, **call, cleared=counters)
    assert not counters.any()
    if cache_dtype is None:
        return
    for cache, new, name in (
        (k_cache, expected[1], "k_scale"),
        (v_cache, layer.v.double(), "v_scale"),
    ):
        scale = arguments.get(name, torch.ones(1)).double().expand(2)[:, None]
        got = torch.stack([cache[s // 8, s % 8] for s in layer.slots.tolist()])
        assert_close(
            got, clamped(new / scale, cache_dtype), name[0], magnitude=1 / float(scale.min())
        )


def test_prologue_with_positions_slots_and_three_axes() -> None:
    layer = Layer(F32, heads=(8, 2), head_dim=128)
    positions = torch.randint(0, 100, (3, 7), generator=torch.Generator().manual_seed(0))
    k_cache, v_cache = caches(4, 8, 2, 128, F32, "nhd")
    slots = layer.slots.clone()
    slots[2] = -1
    table = cos_sin_table(128)
    weight_q, weight_k = torch.rand(8 * 128), torch.rand(2 * 128)
    section = [16, 24, 24]
    out_q, _ = hpcattn.rope_norm_store_kv(
        layer.q,
        layer.k,
        layer.v,
        table,
        positions=positions,
        mrope_section=section,
        slot_mapping=slots,
        k_cache=k_cache,
        v_cache=v_cache,
        norm_policy="norm_then_rope",
        norm_scope="token",
        q_norm_weight=weight_q,
        k_norm_weight=weight_k,
        norm_eps=1e-6,
    )
    options: dict[str, Any] = {
        "mrope_section": section,
        "norm_policy": "norm_then_rope",
        "norm_scope": "token",
        "eps": 1e-6,
    }
    expected = reference.rope_norm(layer.q, table, positions, weight=weight_q, **options)
    assert_close(out_q, expected, "out_q")
    expected = reference.rope_norm(layer.k, table, positions, weight=weight_k, **options)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            assert_close(k_cache[slot // 8, slot % 8], expected[token], f"k of token {token}")
    assert int(k_cache.isnan().all((-1, -2)).sum()) == 4 * 8 - 6


@pytest.mark.parametrize("fixed", [True, False])
def test_prologue_with_a_float8_query(fixed: bool) -> None:
    layer = Layer(BF16)
    layer.q[1, 2] = 0
    table = cos_sin_table(64)
    q_scale = torch.tensor([0.004]) if fixed else None
    out_q, scale = hpcattn.rope_norm_store_kv(
        layer.q,
        layer.k,
        layer.v,
        table,
        positions=layer.positions,
        out_q_dtype=E4M3,
        q_scale=q_scale,
    )
    expected = reference.rope_norm(layer.q, table, layer.positions)
    if fixed:
        assert scale is None
        factor = torch.tensor(0.004, dtype=F32).double()
    else:
        amax = expected.abs().amax(-1)
        assert_close(scale, torch.where(amax == 0, 1.0, amax / 448), "out_q_scale", magnitude=0.01)
        factor = scale.double()[..., None]
    assert_close(out_q, clamped(expected / factor, E4M3), "out_q", magnitude=500)


def test_prologue_in_place_and_padding() -> None:
    layer = Layer(F32)
    expected = reference.rope_norm(layer.q, cos_sin_table(64), layer.positions)
    arguments = {"cu_seqlens_q": cumulative([4, 1]), "kv_lens": int32([7, 10])}
    out_q, _ = hpcattn.rope_norm_store_kv(
        layer.q, layer.k, layer.v, cos_sin_table(64), **arguments, out_q=layer.q
    )
    assert out_q is layer.q
    assert_close(out_q[:5], expected[:5], "out_q")
    assert bool((out_q[5:] == 0).all())


@pytest.mark.parametrize("dtype", WIDE)
def test_merge(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    partials = [random((5, 3, 64), dtype, generator) for _ in range(3)]
    lses = [torch.randn(5, 3, generator=generator) * 4 for _ in range(3)]
    lses[1][2] = -math.inf
    nan_like(partials[1][2])  # what does not count may hold anything
    for lse in lses:
        lse[4, 0] = -math.inf
    expected, expected_lse = reference.merge_partials(partials, lses)
    out, lse = hpcattn.merge_partials(partials, lses)
    assert_close(out, expected, "out", magnitude=4.0)
    assert_close(lse, expected_lse, "lse", magnitude=10.0)
    in_place, _ = hpcattn.merge_partials(partials, lses, out=partials[0])
    assert in_place is partials[0]
    assert torch.equal(in_place, out)
    wide, _ = hpcattn.merge_partials([partials[2]], [lses[2]], out=torch.empty(5, 3, 64))
    assert_close(wide, reference.merge_partials([partials[2]], [lses[2]])[0], "out", magnitude=4.0)


def test_a_plan_serves_the_layers_of_its_group() -> None:
    batch = make_batch(lengths=[(1, 700), (9, 300), (0, 0)], q_dtype=BF16)
    group = hpcattn.AttentionGroup.of(batch.q, batch.k_cache)
    plan = hpcattn.plan_attention(group, batch.cu_seqlens_q, batch.kv_lens)
    summary = hpcattn.plan_summary(plan)
    assert summary["num_requests"] == 3
    assert summary["num_tokens"] == 10
    assert summary["group"]["q_dtype"] == "bfloat16"
    tensors, arguments = batch.paged()
    planned = hpcattn.paged_attention(*tensors, **arguments, scale=0.125, plan=plan)
    assert torch.equal(planned, hpcattn.paged_attention(*tensors, **arguments, scale=0.125))
    with pytest.raises(ValueError, match=r"plan: it was made for .*; this call has"):
        hpcattn.paged_attention(*tensors, **arguments, scale=0.125, window=8, plan=plan)


def test_a_plan_is_made_anew_in_place() -> None:
    group = hpcattn.AttentionGroup(4, 2, 64, 16, F32, F32)
    words = hpcattn.plan_words(group, max_requests=4, max_tokens=32)
    plan = torch.empty(words, dtype=torch.int32)
    for lengths in ([(1, 5)], [(8, 80), (1, 600), (0, 0)]):
        batch = make_batch(lengths=lengths)
        same = hpcattn.plan_attention(group, batch.cu_seqlens_q, batch.kv_lens, plan=plan)
        assert same is plan
        tensors, arguments = batch.paged()
        out = hpcattn.paged_attention(*tensors, **arguments, scale=0.125, plan=plan)
        expected, _ = reference.paged_attention(*tensors, **arguments, scale=0.125)
        assert_close(out, expected, "out", magnitude=6.0)


def test_fixed_splits_make_a_request_independent_of_its_batch() -> None:
    batch = make_batch(lengths=[(1, 900), (2, 333), (1, 130)], q_dtype=BF16)
    group = hpcattn.AttentionGroup.of(batch.q, batch.k_cache)
    tensors, arguments = batch.paged()

    def run(**arguments: Any) -> torch.Tensor:
        plan = hpcattn.plan_attention(
            group, arguments["cu_seqlens_q"], arguments["kv_lens"], fixed_split=128
        )
        return hpcattn.paged_attention(*tensors, **arguments, scale=0.125, plan=plan)

    together = run(**arguments)
    alone = run(
        cu_seqlens_q=int32([0, 1]), kv_lens=batch.kv_lens[:1], page_table=batch.page_table[:1]
    )
    assert torch.equal(together[:1], alone[:1])


@given(
    num_tokens=st.integers(0, 9),
    heads=st.sampled_from([(1, 1), (6, 2), (4, 4)]),
    head_dim=st.sampled_from([64, 80, 128]),
    rotary=st.sampled_from([0, 2, 32, 64]),
    dtype=st.sampled_from(WIDE),
    style=st.sampled_from(["neox", "interleaved"]),
    policy=st.sampled_from(["none", "rope_then_norm", "norm_then_rope"]),
    scope=st.sampled_from(["head", "token"]),
    seed=st.integers(0, 1000),
)
def test_prologue_of_any_shape(
    num_tokens: int,
    heads: tuple[int, int],
    head_dim: int,
    rotary: int,
    dtype: torch.dtype,
    style: str,
    policy: str,
    scope: str,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k = (random((num_tokens, h, head_dim), dtype, generator) for h in heads)
    positions = torch.randint(0, 100, (num_tokens,), generator=generator)
    table = cos_sin_table(rotary)
    options: dict[str, Any] = {"style": style, "norm_policy": policy, "norm_scope": scope}
    weight = None
    call = dict(options)
    if policy != "none":
        weight = torch.rand(head_dim * (heads[0] if scope == "token" else 1), generator=generator)
        k_weight = torch.rand(head_dim * (heads[1] if scope == "token" else 1), generator=generator)
        call |= {"q_norm_weight": weight, "k_norm_weight": k_weight, "norm_eps": 1e-5}
    out_q, _ = hpcattn.rope_norm_store_kv(q, k, k, table, positions=positions, **call)
    expected = reference.rope_norm(q, table, positions, weight=weight, eps=1e-5, **options)
    assert_close(out_q, expected, "out_q", magnitude=3.0)
