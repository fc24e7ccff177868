# SPDX-License-Identifier: Apache-2.0
"""A layer's attention against the float64 reference, with all that the engine can ask for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hpcattn
import reference
from layers import ORDERS, Batch, fill_cache, make_builder, make_cache, make_impl, make_layer

# Decodes, speculative rows, a chunk after cached tokens, a prompt; padding rows at the end.
MIXED = Batch(q_lens=[1, 3, 20, 33], kv_lens=[40, 17, 70, 33], padding=5)
SLOPES = [2.0**-power for power in range(1, 9)]


def attend(
    impl: Any, batch: Batch, order: str = "LBNHC", causal: bool = True, **scales: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The implementation's output of a whole step, and the reference's."""
    layer = make_layer(impl, **scales)
    cache = make_cache(impl, 20, order)
    k_cache, v_cache = fill_cache(impl, layer, cache, batch)
    metadata = make_builder(impl).build(0, batch.common(causal=causal))
    torch.manual_seed(0)
    query = torch.randn(batch.num_tokens, impl.num_heads, impl.head_size).to(impl.dtype)
    output = torch.full_like(query, torch.nan)
    impl.forward(layer, query, None, None, cache, metadata, output=output)
    live = sum(batch.q_lens)
    assert not output[live:].any(), "rows of padding are 0"
    expected, _ = reference.paged_attention(
        query[:live],
        k_cache,
        v_cache,
        page_table=metadata.block_table,
        cu_seqlens_q=metadata.query_start_loc,
        kv_lens=metadata.seq_lens,
        scale=impl.scale,
        causal=causal,
        window=impl.sliding_window,
        softcap=impl.softcap,
        alibi_slopes=impl.alibi_slopes,
        sinks=impl.sinks,
        k_scale=layer._k_scale.reshape(1) if impl.is_fp8 else None,
        v_scale=layer._v_scale.reshape(1) if impl.is_fp8 else None,
    )
    return output[:live], expected


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sliding_window": 9},
        {"logits_soft_cap": 3.0},
        {"alibi_slopes": SLOPES},
        {"sinks": torch.linspace(-2, 2, 8)},
        {"sliding_window": 20, "logits_soft_cap": 5.0, "sinks": torch.zeros(8)},
        {"head_size": 128, "num_heads": 6, "num_kv_heads": 1},
    ],
    ids=["plain", "window", "softcap", "alibi", "sinks", "together", "mqa"],
)
def test_forward(options: dict[str, Any], order: str) -> None:
    output, expected = attend(make_impl(**options), MIXED, order)
    torch.testing.assert_close(output.double(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_forward_in_16_bits(dtype: torch.dtype) -> None:
    output, expected = attend(make_impl(dtype, sliding_window=30), MIXED)
    torch.testing.assert_close(output.double(), expected, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["fp8", "fp8_e4m3", "fp8_e5m2"])
def test_forward_over_a_float8_cache(name: str) -> None:
    impl = make_impl(kv_cache_dtype=name)
    output, expected = attend(impl, MIXED, k_scale=0.5, v_scale=2.0)
    torch.testing.assert_close(output.double(), expected, rtol=2e-5, atol=2e-5)


def test_forward_with_a_scale_for_each_kv_head() -> None:
    impl = make_impl(kv_cache_dtype="fp8")
    layer = make_layer(impl)
    layer._k_scale, layer._v_scale = torch.tensor([0.5, 1.0]), torch.tensor([2.0, 0.25])
    scales = impl.kv_scales(layer)
    assert scales["k_scale"].tolist() == [0.5, 1.0]
    assert scales["v_scale"].tolist() == [2.0, 0.25]


def test_not_causal_over_pages() -> None:
    output, expected = attend(make_impl(sliding_window=12), MIXED, causal=False)
    torch.testing.assert_close(output.double(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("ranks", [2, 4])
def test_heads_of_a_rank_equal_the_whole(ranks: int) -> None:
    """Tensor parallel: with four ranks two KV heads are on two ranks each."""
    torch.manual_seed(0)
    whole = make_impl()
    query = torch.randn(MIXED.num_tokens, 8, 64)
    k, v = (torch.randn(sum(MIXED.kv_lens), 2, 64) for _ in range(2))
    slots = Batch(MIXED.kv_lens, MIXED.kv_lens).common().slot_mapping

    def run(impl: Any, q: torch.Tensor, heads: slice) -> torch.Tensor:
        layer, cache, output = make_layer(impl), make_cache(impl, 20), torch.empty_like(q)
        impl.do_kv_cache_update(layer, k[:, heads], v[:, heads], cache, slots)
        metadata = make_builder(impl).build(0, MIXED.common())
        return impl.forward(layer, q, None, None, cache, metadata, output=output)

    expected = run(whole, query, slice(0, 2))
    share, kv_share = 8 // ranks, max(1, 2 // ranks)
    for rank in range(ranks):
        impl = make_impl(num_heads=share, num_kv_heads=kv_share)
        mine = slice(rank * share, (rank + 1) * share)
        first = mine.start // 4
        got = run(impl, query[:, mine].contiguous(), slice(first, first + kv_share))
        torch.testing.assert_close(got, expected[:, mine], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("attn_type", ["encoder", "encoder_only"])
def test_an_encoder_attends_both_ways_without_pages(attn_type: str) -> None:
    impl = make_impl(attn_type=attn_type, sliding_window=7)
    batch = Batch(q_lens=[5, 30], kv_lens=[5, 30])
    metadata = make_builder(impl).build(0, batch.common(causal=False))
    assert metadata.plans == {}
    q, k, v = (torch.randn(35, heads, 64) for heads in (8, 2, 2))
    output = torch.full_like(q, torch.nan)
    empty = torch.tensor([])
    impl.do_kv_cache_update(make_layer(impl), k, v, empty, metadata.slot_mapping)
    impl.forward(make_layer(impl), q, k, v, empty, metadata, output=output)
    cu_seqlens = metadata.query_start_loc
    expected, _ = reference.packed_attention(
        q, k, v, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens,
        scale=impl.scale, causal=False, window=7,
    )  # fmt: skip
    torch.testing.assert_close(output.double(), expected, rtol=2e-5, atol=2e-5)


def test_cross_attention_sees_the_whole_encoder() -> None:
    """More KV tokens than query tokens, and fewer; the causal flag does not count."""
    impl = make_impl(attn_type="encoder_decoder")
    output, expected = attend(impl, Batch(q_lens=[1, 4], kv_lens=[30, 9]), causal=False)
    torch.testing.assert_close(output.double(), expected, rtol=2e-5, atol=2e-5)


def test_a_fused_output_is_quantised_by_the_call() -> None:
    from vllm.model_executor.layers.quantization.utils.quant_utils import (
        kFp8DynamicTokenSym,
        kFp8StaticTensorSym,
    )

    impl = make_impl(torch.bfloat16)
    assert impl.fused_output_quant_supported(kFp8StaticTensorSym)
    assert not impl.fused_output_quant_supported(kFp8DynamicTokenSym)
    layer, cache, batch = make_layer(impl), make_cache(impl, 20), MIXED
    fill_cache(impl, layer, cache, batch)
    metadata = make_builder(impl).build(0, batch.common())
    query = torch.randn(batch.num_tokens, 8, 64, dtype=torch.bfloat16)
    plain, fused = torch.empty_like(query), query.new_empty(query.shape, dtype=torch.float8_e4m3fn)
    scale = torch.tensor(0.01)
    impl.forward(layer, query, None, None, cache, metadata, output=plain)
    impl.forward(layer, query, None, None, cache, metadata, output=fused, output_scale=scale)
    torch.testing.assert_close(fused.float() * scale, plain.float(), rtol=0.07, atol=1e-4)
    with pytest.raises(NotImplementedError, match="output_block_scale is given, expected None"):
        impl.forward(
            layer, query, None, None, cache, metadata, output=fused, output_block_scale=scale
        )


def test_a_profiling_run_gives_zeros() -> None:
    impl = make_impl()
    output = torch.full((4, 8, 64), torch.nan)
    impl.forward(make_layer(impl), output, None, None, torch.tensor([]), None, output=output)
    assert not output.any()


def test_the_plan_of_the_step_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    impl = make_impl()
    seen = []
    monkeypatch.setattr(hpcattn, "paged_attention", lambda *_, plan, **__: seen.append(plan))
    metadata = make_builder(impl).build(0, MIXED.common())
    query = torch.zeros(MIXED.num_tokens, 8, 64)
    cache = make_cache(impl, 20)
    impl.forward(make_layer(impl), query, None, None, cache, metadata, output=query)
    assert seen == list(metadata.plans.values())
    assert seen[0] is not None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"head_size": 72}, "head_size 72 not supported, expected one of 64, 80, 96"),
        ({"kv_cache_dtype": "nvfp4"}, "kv_cache_dtype nvfp4 not supported, expected one of auto"),
        ({"kv_cache_dtype": "float16"}, "float16 not supported with dtype torch.float32"),
        ({"num_heads": 7}, "7 query heads and 2 KV heads not supported, expected a multiple"),
        ({"sinks": torch.zeros(3)}, r"sinks of shape \[3\] not supported, expected \[8\]"),
        ({"attn_type": "other"}, "attention type other not supported"),
    ],
)
def test_a_layer_that_is_not_taken_says_why_at_once(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make_impl(**options)


def test_every_reason_is_given() -> None:
    with pytest.raises(ValueError, match=r"head_size 72 .*; kv_cache_dtype nvfp4 "):
        make_impl(head_size=72, kv_cache_dtype="nvfp4")
