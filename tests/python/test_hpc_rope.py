# SPDX-License-Identifier: Apache-2.0
"""The drop-in's prologue calls against float64, in all combinations of their arguments."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import hpcattn.integrations.hpc as hpc
from hpc_cases import E4M3, Prologue, assert_rounds_to, make_case, make_prologue, stored

MIXED = [(5, 5), (37, 60), (1, 90), (0, 12), (130, 130)]
DECODE = [(1, 1), (1, 64), (1, 77)]
SCALES = (torch.full((1,), 0.75), torch.full((1,), 1.25))


@pytest.fixture(autouse=True)
def restore_eps() -> Iterator[None]:
    before = hpc.norm_eps()
    yield
    hpc.set_norm_eps(before)


def weights_of(policy: int, given: bool, head_dim: int = 64) -> dict[str, torch.Tensor]:
    if policy == 0 and not given:
        return {}
    generator = torch.Generator().manual_seed(3)
    names = ("q_norm_weight", "k_norm_weight")
    return {name: torch.rand(head_dim, generator=generator) + 0.5 for name in names}


def check_kv(
    batch: Prologue, k: torch.Tensor, v: torch.Tensor, policy: int, weights: dict[str, torch.Tensor]
) -> None:
    """K and V as stored, by the dtype that they have."""
    k_scale, v_scale = (float(s) if k.dtype == E4M3 else 1.0 for s in SCALES)
    expected_k = batch.expected(batch.k, policy, weights.get("k_norm_weight")) / k_scale
    assert_rounds_to(k, expected_k, "K")
    assert_rounds_to(v, batch.v.double() / v_scale, "V")


@pytest.mark.parametrize("lengths", [MIXED, DECODE], ids=["prefill", "decode"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("policy", [0, 1, 2])
def test_rope_norm_store_kv(
    policy: int, dtype: torch.dtype, lengths: list[tuple[int, int]]
) -> None:
    for given_q, given_kv, given_weights in itertools.product((False, True), repeat=3):
        batch = make_prologue(lengths=lengths, dtype=dtype)
        weights = weights_of(policy, given_weights)
        options: dict[str, Any] = dict(weights)
        if given_q:
            options["out_q"] = torch.full_like(batch.q, float("nan"))
        if given_kv:
            options["out_k"] = torch.full_like(batch.k, float("nan"))
            options["out_v"] = torch.full_like(batch.v, float("nan"))
        got = hpc.rope_norm_store_kv(
            **batch.arguments, is_prefill=lengths is MIXED, qk_norm_policy=policy, **options
        )
        assert not given_q or got is options["out_q"]
        assert_rounds_to(got, batch.expected(batch.q, policy, weights.get("q_norm_weight")), "q")
        caches = (batch.arguments["key_cache"], batch.arguments["value_cache"])
        if given_kv:
            k, v = options["out_k"], options["out_v"]
            assert all(bool(cache.isnan().all()) for cache in caches), "pages were written"
        else:
            k, v = (stored(cache, batch.slots) for cache in caches)
            live = len(batch.slots) * caches[0][0, 0].numel()
            assert int((~caches[0].isnan()).sum()) == live, "more than the tokens was written"
        check_kv(batch, k, v, policy, weights)


@pytest.mark.parametrize("prefill", [True, False])
@pytest.mark.parametrize("quant_policy", [1, 2, hpc.QuantType(1)])
@pytest.mark.parametrize("policy", [0, 1, 2])
@pytest.mark.parametrize("out_kv", [None, E4M3, torch.bfloat16])
def test_rope_norm_store_kv_fp8(
    policy: int, quant_policy: Any, prefill: bool, out_kv: torch.dtype | None
) -> None:
    lengths = MIXED if prefill else DECODE
    for given_q, upper_max in itertools.product((False, True), (None, 240.0)):
        batch = make_prologue(lengths=lengths, kv_dtype=E4M3)
        weights = weights_of(policy, False)
        options: dict[str, Any] = dict(weights)
        if given_q:
            options["out_q"] = torch.empty(batch.q.shape, dtype=E4M3)
        if out_kv is not None:
            options["out_k"] = torch.empty(batch.k.shape, dtype=out_kv)
            options["out_v"] = torch.empty(batch.v.shape, dtype=out_kv)
        if int(quant_policy) == 2:
            options["q_scale_inv"] = torch.full((1,), 3.0)
        q, scales, flag = hpc.rope_norm_store_kv_fp8(
            **batch.arguments,
            is_prefill=prefill,
            k_scale=SCALES[0],
            v_scale=SCALES[1],
            quant_policy=quant_policy,
            max_seqlens=130 if prefill else 0,
            upper_max=upper_max,
            qk_norm_policy=policy,
            **options,
        )
        assert q.dtype == E4M3
        assert not given_q or q is options["out_q"]
        assert flag.dtype == torch.int32
        assert flag.shape == (len(lengths), 2)
        assert int(flag.abs().sum()) == 0
        expected = batch.expected(batch.q, policy, weights.get("q_norm_weight"))
        if int(quant_policy) == 2:
            assert scales.numel() == 0
            assert_rounds_to(q, expected * 3.0, "q")
        else:
            check_scales(scales, expected, upper_max or 448.0, batch.lengths if prefill else None)
            factor = expected.abs().amax(-1, keepdim=True) / (upper_max or 448.0)
            assert_rounds_to(q, expected / factor, "q")
        caches = (batch.arguments["key_cache"], batch.arguments["value_cache"])
        if out_kv is None:
            check_kv(batch, *(stored(cache, batch.slots) for cache in caches), policy, weights)
        else:
            check_kv(batch, options["out_k"], options["out_v"], policy, weights)
            untouched = all(bool((c.view(torch.uint8) == 0x7F).all()) for c in caches)
            assert untouched, "pages were written"


def check_scales(
    scales: torch.Tensor, expected: torch.Tensor, upper_max: float, lengths: list[int] | None
) -> None:
    """A scale for each token and head, request by request in a prefill."""
    amax = expected.abs().amax(-1).float() / upper_max
    if lengths is None:
        torch.testing.assert_close(scales, amax, rtol=1e-5, atol=0)
        return
    assert scales.shape == (len(lengths), amax.shape[1], 256)  # 130, padded
    assert scales.is_contiguous()
    assert bool(scales.isfinite().all())
    start = 0
    for r, n in enumerate(lengths):
        torch.testing.assert_close(scales[r, :, :n], amax[start : start + n].T, rtol=1e-5, atol=0)
        start += n


def test_prefill_without_max_seqlens_has_room_for_every_token() -> None:
    batch = make_prologue(lengths=[(3, 3), (140, 200)], kv_dtype=E4M3)
    _, scales, _ = hpc.rope_norm_store_kv_fp8(
        **batch.arguments, is_prefill=True, k_scale=SCALES[0], v_scale=SCALES[1], quant_policy=1
    )
    assert scales.shape == (2, 8, 256)
    check = batch.expected(batch.q, 0, None).abs().amax(-1).float() / 448
    torch.testing.assert_close(scales[1, :, :140], check[3:].T, rtol=1e-5, atol=0)


def test_rows_of_padding_are_not_read() -> None:
    batch = make_prologue(lengths=[(2, 9), (1, 4)], padding=4, kv_dtype=E4M3)
    q, scales, _ = hpc.rope_norm_store_kv_fp8(
        **batch.arguments, is_prefill=False, k_scale=SCALES[0], v_scale=SCALES[1], quant_policy=1
    )
    assert int(q[3:].view(torch.uint8).sum()) == 0
    assert float(scales[3:].abs().sum()) == 0.0


def test_the_epsilon_is_a_setting() -> None:
    assert hpc.norm_eps() == 1e-6
    weights = {name: weight * 1e-3 for name, weight in weights_of(2, True).items()}
    results = []
    for eps in (1e-6, 0.5):
        assert hpc.set_norm_eps(eps) in (1e-6, 0.5)
        batch = make_prologue(lengths=DECODE)
        got = hpc.rope_norm_store_kv(
            **batch.arguments, is_prefill=False, qk_norm_policy=2, **weights
        )
        assert_rounds_to(got, batch.expected(batch.q, 2, weights["q_norm_weight"]), "q")
        results.append(got)
    assert not torch.equal(*results)
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="eps"):
            hpc.set_norm_eps(bad)


def test_prologue_and_attention_fit_together_in_fp8() -> None:
    """q, its scales and the pages of one call go to the other as they are."""
    for prefill in (True, False):
        lengths = [(5, 40), (9, 9)] if prefill else [(1, 40), (1, 9)]
        case = make_case(lengths=lengths, dtype=E4M3, heads=(8, 2), layout="halves")
        batch = make_prologue(lengths=lengths)
        arguments = {
            **batch.arguments,
            "key_cache": case.k_cache,
            "value_cache": case.v_cache,
            "kvcache_indices": case.block_ids,
        }
        scales = (case.scales["k_scale"], case.scales["v_scale"])
        case.q, q_scale, flag = hpc.rope_norm_store_kv_fp8(
            **arguments,
            is_prefill=prefill,
            k_scale=scales[0],
            v_scale=scales[1],
            quant_policy=1,
            max_seqlens=9,
        )
        case.scales["q_scale"] = q_scale
        if prefill:
            got = hpc.attention_with_kvcache_prefill_fp8(
                *(case.q, case.k_cache, case.v_cache, q_scale, *scales),
                *(case.cu_seqlens_q, case.block_ids, case.kv_lens, 9),
            )
        else:
            got = case.decode(new_kv_included=True, split_flag=flag)
        assert bool(got.isfinite().all())
        # A request whose KV tokens are all new: its first row sees its own V alone.
        if prefill:
            own = stored(case.v_cache, [(int(case.block_ids[1, 0]), 0)]).double()
            expected = (own * float(scales[1])).repeat_interleave(4, 1)[0]
            torch.testing.assert_close(got[5].double(), expected, rtol=8e-3, atol=1e-6)
