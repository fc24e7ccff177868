# SPDX-License-Identifier: Apache-2.0
"""Attention by torch: every feature with every dtype, over poisoned pools, against float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hpcattn
import reference
from batches import FP8, LAYOUTS, assert_close, cumulative, int32, make_batch, random

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
E4M3, E5M2 = FP8
DTYPES = [
    (F32, F32),
    (F16, F16),
    (BF16, BF16),
    (F32, E4M3),
    (F32, E5M2),
    (F16, E4M3),
    (F16, E5M2),
    (BF16, E4M3),
    (BF16, E5M2),
    (E4M3, E4M3),
    (E4M3, E5M2),
]
FEATURES = {
    "causal": {},
    "window": {"window": 7},
    "encoder": {"causal": False},
    "encoder_window": {"causal": False, "window": 5},
    "softcap": {"softcap": 3.0},
    "alibi": {"alibi_slopes": True},
    "sinks": {"sinks": True},
    "all": {"window": 9, "softcap": 5.0, "alibi_slopes": True, "sinks": True},
}
# Decode, speculative rows, a prefill, a chunk, an empty request, one without new tokens, one token.
MIXED = [(1, 33), (3, 18), (20, 20), (9, 40), (0, 0), (0, 5), (1, 1)]


def options_of(feature: dict[str, Any], num_heads: int, seed: int = 0) -> dict[str, Any]:
    """A feature with its tensors filled in, and an odd scale."""
    generator = torch.Generator().manual_seed(seed)
    options: dict[str, Any] = {"scale": 0.137, **feature}
    if options.get("alibi_slopes"):
        options["alibi_slopes"] = torch.rand(num_heads, generator=generator) * 0.5
    if options.get("sinks"):
        options["sinks"] = torch.randn(num_heads, generator=generator)
    return options


def check_paged(batch: Any, options: dict[str, Any], **call: Any) -> torch.Tensor:
    """Runs the operator and the reference; returns what the operator gave."""
    tensors, arguments = batch.paged()
    out, lse = hpcattn.paged_attention(*tensors, **arguments, **options, return_lse=True, **call)
    expected, expected_lse = reference.paged_attention(*tensors, **arguments, **options)
    live = int(batch.cu_seqlens_q[-1])
    assert_close(out[:live], expected[:live], "out", magnitude=6.0)
    assert_close(lse[:live], expected_lse[:live], "lse", magnitude=20.0)
    assert bool((out[live:].float() == 0).all())
    assert bool((lse[live:] == -math.inf).all())
    return out


@pytest.mark.parametrize(("q_dtype", "kv_dtype"), DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_with_every_dtype(
    feature: str, q_dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    batch = make_batch(
        seed=len(feature),
        lengths=MIXED,
        heads=(6, 2),
        q_dtype=q_dtype,
        kv_dtype=kv_dtype,
        padding=2,
        per_head_scales=feature in ("all", "window"),
    )
    out = check_paged(batch, options_of(FEATURES[feature], 6))
    assert out.dtype == (BF16 if q_dtype in FP8 else q_dtype)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize(("page_size", "heads"), [(8, (1, 1)), (24, (5, 1)), (64, (8, 8))])
def test_head_dims_pages_and_groups(head_dim: int, page_size: int, heads: tuple[int, int]) -> None:
    batch = make_batch(
        lengths=[(1, 2 * page_size), (4, page_size + 1), (17, 30)],
        heads=heads,
        head_dim=head_dim,
        page_size=page_size,
        q_dtype=BF16,
    )
    check_paged(batch, {"scale": head_dim**-0.5})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [F32, BF16, E4M3])
def test_strides_carry_the_layout(layout: str, dtype: torch.dtype) -> None:
    batch = make_batch(
        lengths=MIXED, q_dtype=BF16 if dtype in FP8 else dtype, kv_dtype=dtype, layout=layout
    )
    qkv = torch.zeros(batch.q.shape[0], 9, 64, dtype=batch.q.dtype)
    qkv[:, 2:6] = batch.q
    batch.q = qkv[:, 2:6]
    out = torch.full((2 * batch.q.shape[0], 4, 64), 5.0, dtype=batch.q.dtype)
    check_paged(batch, {"scale": 0.125}, out=out[::2])
    assert bool((out[1::2] == 5).all())


@pytest.mark.parametrize("q_dtype", [F32, F16, BF16, E4M3])
def test_output_in_float8(q_dtype: torch.dtype) -> None:
    kv_dtype = E4M3 if q_dtype in FP8 else q_dtype
    batch = make_batch(lengths=MIXED, q_dtype=q_dtype, kv_dtype=kv_dtype)
    tensors, arguments = batch.paged()
    out_scale = torch.tensor([0.002])
    out = hpcattn.paged_attention(*tensors, **arguments, scale=0.125, out_scale=out_scale)
    expected, _ = reference.paged_attention(*tensors, **arguments, scale=0.125)
    expected = (expected / 0.002).clamp(-448, 448)
    assert out.dtype == E4M3
    assert bool((expected.abs() == 448).any()), "the case must saturate"
    assert_close(out, expected, "out", magnitude=6.0 / 0.002)


def test_out_dtypes_of_a_float8_query() -> None:
    batch = make_batch(lengths=[(2, 20)], q_dtype=E4M3, kv_dtype=E4M3)
    for dtype in (F32, F16, BF16):
        assert check_paged(batch, {"scale": 0.1}, out_dtype=dtype).dtype == dtype


def test_a_page_that_is_not_there_has_no_keys() -> None:
    batch = make_batch(lengths=[(3, 40), (2, 20)])
    batch.page_table[0, 1] = -1
    batch.page_table[1, :2] = -1
    check_paged(batch, {"scale": 0.125})
    check_paged(batch, {"scale": 0.125, "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])})


def test_empty_batches() -> None:
    q = torch.empty(0, 4, 64)
    cache = torch.empty(0, 16, 2, 64)
    out, lse = hpcattn.paged_attention(
        q,
        cache,
        cache,
        page_table=torch.empty(0, 3, dtype=torch.int32),
        cu_seqlens_q=int32([0]),
        kv_lens=int32([]),
        scale=1.0,
        return_lse=True,
    )
    assert out.shape == (0, 4, 64)
    assert lse.shape == (0, 4)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("feature", ["causal", "encoder", "all"])
def test_packed(dtype: torch.dtype, feature: str) -> None:
    generator = torch.Generator().manual_seed(3)
    lengths_q, lengths_k = [5, 0, 1, 12], [5, 3, 9, 30]
    qkv = random((48, 4 + 2 + 2, 80), dtype, generator)
    q, k, v = qkv[: sum(lengths_q), :4], qkv[:, 4:6], qkv[:, 6:]
    arguments = {"cu_seqlens_q": cumulative(lengths_q), "cu_seqlens_k": cumulative(lengths_k)}
    options = options_of(FEATURES[feature], 4)
    out, lse = hpcattn.packed_attention(q, k, v, **arguments, **options, return_lse=True)
    expected, expected_lse = reference.packed_attention(q, k, v, **arguments, **options)
    assert_close(out, expected, "out", magnitude=6.0)
    assert_close(lse, expected_lse, "lse", magnitude=20.0)


def test_merged_halves_equal_the_whole() -> None:
    batch = make_batch(lengths=[(1, 64), (1, 48)], page_size=16)
    tensors, arguments = batch.paged()
    whole, whole_lse = hpcattn.paged_attention(*tensors, **arguments, scale=0.125, return_lse=True)
    parts, lses = [], []
    for first in (True, False):
        half = dict(arguments)
        half["page_table"] = (
            batch.page_table[:, :2] if first else batch.page_table[:, 2:].contiguous()
        )
        half["kv_lens"] = int32([32, 32] if first else [32, 16])
        out, lse = hpcattn.paged_attention(*tensors, **half, scale=0.125, return_lse=True)
        parts.append(out)
        lses.append(lse)
    merged, merged_lse = hpcattn.merge_partials(parts, lses)
    assert_close(merged, whole.double(), "out", magnitude=6.0)
    assert_close(merged_lse, whole_lse.double(), "lse", magnitude=20.0)


def test_two_runs_agree_in_every_bit() -> None:
    batch = make_batch(lengths=MIXED * 3, q_dtype=BF16)
    tensors, arguments = batch.paged()
    first = hpcattn.paged_attention(*tensors, **arguments, scale=0.125)
    for _ in range(3):
        again = hpcattn.paged_attention(*tensors, **arguments, scale=0.125)
        assert torch.equal(first, again)


REQUEST = st.tuples(st.integers(0, 20), st.integers(0, 60)).map(lambda t: (t[0], t[0] + t[1]))


@given(
    lengths=st.lists(REQUEST, min_size=1, max_size=4),
    heads=st.sampled_from([(1, 1), (4, 4), (6, 2), (5, 1), (8, 1)]),
    head_dim=st.sampled_from([64, 80, 96, 128]),
    page_size=st.sampled_from([8, 16, 40]),
    dtypes=st.sampled_from(DTYPES),
    layout=st.sampled_from(LAYOUTS),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 50),
    softcap=st.sampled_from([0.0, 2.0]),
    alibi=st.booleans(),
    sinks=st.booleans(),
    padding=st.integers(0, 2),
    planned=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_shape_and_feature(
    lengths: list[tuple[int, int]],
    heads: tuple[int, int],
    head_dim: int,
    page_size: int,
    dtypes: tuple[torch.dtype, torch.dtype],
    layout: str,
    causal: bool,
    window: int | None,
    softcap: float,
    alibi: bool,
    sinks: bool,
    padding: int,
    planned: bool,
    seed: int,
) -> None:
    q_dtype, kv_dtype = dtypes
    batch = make_batch(
        seed=seed,
        lengths=lengths,
        heads=heads,
        head_dim=head_dim,
        page_size=page_size,
        q_dtype=q_dtype,
        kv_dtype=kv_dtype,
        layout=layout,
        padding=padding,
    )
    feature = {"causal": causal, "window": window, "softcap": softcap}
    options = options_of({**feature, "alibi_slopes": alibi, "sinks": sinks}, heads[0], seed)
    for name in ("alibi_slopes", "sinks"):
        options[name] = options[name] if isinstance(options[name], torch.Tensor) else None
    plan = None
    if planned:
        group = hpcattn.AttentionGroup.of(batch.q, batch.k_cache, causal=causal, window=window)
        plan = hpcattn.plan_attention(group, batch.cu_seqlens_q, batch.kv_lens)
    check_paged(batch, options, plan=plan)
