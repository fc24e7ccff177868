# SPDX-License-Identifier: Apache-2.0
"""The fused prologue's hooks against the float64 reference."""

from __future__ import annotations

import pytest
import torch

import reference
from hpcattn.integrations.vllm import kv_views
from hpcattn.integrations.vllm.prologue import interleaved_rows
from layers import ORDERS, PAGE_SIZE, Batch, make_cache, make_impl, make_layer

BATCH = Batch(q_lens=[1, 5, 9], kv_lens=[30, 5, 25], padding=2)
EPS = 1e-5
COS_SIN = torch.rand(64, 64) * 2 - 1
WEIGHTS = torch.rand(2, 1, 64) + 0.5


def _stored(cache: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V at the slots, `[tokens, heads, head_size]`."""
    k, v = kv_views.split(cache, 64, torch.float32)
    return k[slots // PAGE_SIZE, slots % PAGE_SIZE], v[slots // PAGE_SIZE, slots % PAGE_SIZE]


def _check(
    got: tuple[torch.Tensor, ...], qkv: torch.Tensor, cache: torch.Tensor, **rope: object
) -> None:
    """q (and K) that came out, and K and V in the pages."""
    live = sum(BATCH.q_lens)
    q, k, v = kv_views.split_qkv(qkv, 8, 2, 64)
    weights = (None, None) if "eps" not in rope else (WEIGHTS[0, 0], WEIGHTS[1, 0])
    expected_q = reference.rope_norm(q[:live], weight=weights[0], **rope)
    expected_k = reference.rope_norm(k[:live], weight=weights[1], **rope)
    for out, expected in zip(got, (expected_q, expected_k), strict=False):
        torch.testing.assert_close(out[:live].double(), expected, rtol=1e-5, atol=1e-5)
    stored_k, stored_v = _stored(cache, BATCH.common().slot_mapping[:live])
    torch.testing.assert_close(stored_k.double(), expected_k, rtol=1e-5, atol=1e-5)
    assert stored_v.equal(v[:live])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("short", [False, True], ids=["padded slots", "short slots"])
@pytest.mark.parametrize("is_neox", [True, False])
def test_norm_rope_and_store(is_neox: bool, short: bool, order: str) -> None:
    impl = make_impl()
    assert impl.fused_qk_norm_rope_kvcache_supported()
    cache, qkv = make_cache(impl, 8, order), torch.randn(BATCH.num_tokens, 12 * 64)
    q_out = torch.full((BATCH.num_tokens, 8, 64), torch.nan)
    k_out = torch.full((BATCH.num_tokens, 2, 64), torch.nan)
    slots = BATCH.common().slot_mapping
    impl.do_qk_norm_rope_kvcache_update(
        make_layer(impl), qkv, q_out, k_out, BATCH.positions, WEIGHTS[0], WEIGHTS[1], EPS,
        COS_SIN, is_neox, cache, slots[: -BATCH.padding] if short else slots,
    )  # fmt: skip
    assert not q_out.isnan().any()
    assert not k_out.isnan().any()
    _check(
        (q_out, k_out), qkv, cache, cos_sin=COS_SIN, positions=BATCH.positions[: -BATCH.padding],
        style="neox" if is_neox else "interleaved", norm_policy="norm_then_rope", eps=EPS,
    )  # fmt: skip


def test_rope_in_place_and_store() -> None:
    impl = make_impl()
    assert impl.fused_rope_kvcache_supported()
    cache, qkv = make_cache(impl, 8), torch.randn(BATCH.num_tokens, 12 * 64)
    q, k, v = (part.clone() for part in kv_views.split_qkv(qkv, 8, 2, 64))
    impl.do_rope_and_kv_cache_update(
        make_layer(impl), q, k, v, BATCH.positions, COS_SIN, True, cache,
        BATCH.common().slot_mapping,
    )  # fmt: skip
    positions = BATCH.positions[: -BATCH.padding]
    _check((q, k), qkv, cache, cos_sin=COS_SIN, positions=positions)


@pytest.mark.parametrize("interleaved", [False, True])
def test_three_positions_a_token(interleaved: bool) -> None:
    impl = make_impl()
    assert impl.fused_qk_norm_mrope_kvcache_supported()
    cache, qkv = make_cache(impl, 8), torch.randn(BATCH.num_tokens, 12 * 64)
    q_out = torch.full((BATCH.num_tokens, 8, 64), torch.nan)
    positions = torch.randint(0, 64, (3, BATCH.num_tokens))
    section = (8, 6, 2)  # of 16 pairs: half of the head is rotated
    table = COS_SIN[:, :32]
    impl.do_qk_norm_mrope_kvcache_update(
        make_layer(impl), qkv, q_out, positions, WEIGHTS[0], WEIGHTS[1], EPS,
        table, True, section, interleaved, 32, cache, BATCH.common().slot_mapping,
    )  # fmt: skip
    live = positions[:, : -BATCH.padding]
    rope: dict[str, object] = {"cos_sin": table, "positions": live, "mrope_section": section}
    if interleaved:
        rows = interleaved_rows(table, live, section)
        rope = {"cos_sin": rows, "positions": torch.arange(rows.shape[0])}
    _check((q_out,), qkv, cache, **rope, norm_policy="norm_then_rope", eps=EPS)


def test_positions_take_turns_along_the_pairs() -> None:
    table = torch.arange(4)[:, None] * 100.0 + torch.arange(16)  # row * 100 + column
    rows = interleaved_rows(table, torch.tensor([[1], [2], [3]]), (4, 2, 2))
    #        pair: 0  1  2  3  4  5  6  7
    followed = [1, 2, 3, 1, 2, 3, 1, 1]
    assert rows[0, :8].tolist() == [100.0 * p + c for c, p in enumerate(followed)]
    assert rows[0, 8:].tolist() == [100.0 * p + 8 + c for c, p in enumerate(followed)]


def test_a_float8_cache_is_written_by_its_scales() -> None:
    impl = make_impl(torch.bfloat16, kv_cache_dtype="fp8")
    layer, cache = make_layer(impl, k_scale=0.5, v_scale=0.25), make_cache(impl, 8)
    q, k, v = (torch.randn(BATCH.num_tokens, n, 64).bfloat16() for n in (8, 2, 2))
    before = v.clone()
    slots = BATCH.common().slot_mapping
    impl.do_rope_and_kv_cache_update(
        layer, q, k, v, BATCH.positions, COS_SIN, True, cache, slots
    )  # fmt: skip
    _, v_cache = kv_views.split(cache, 64, torch.float8_e4m3fn)
    live = slots[: -BATCH.padding]
    stored = v_cache[live // PAGE_SIZE, live % PAGE_SIZE].float() * 0.25
    torch.testing.assert_close(stored, before[: live.shape[0]].float(), rtol=0.07, atol=1e-2)


@pytest.mark.parametrize(
    "options", [{"attn_type": "encoder_only"}, {"kv_sharing_target_layer_name": "layers.0"}]
)
def test_layers_that_write_no_pages_are_not_fused(options: dict[str, str]) -> None:
    impl = make_impl(**options)
    assert not impl.fused_qk_norm_rope_kvcache_supported()
    assert not impl.fused_qk_norm_mrope_kvcache_supported()
    assert not impl.fused_rope_kvcache_supported()
