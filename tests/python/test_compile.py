# SPDX-License-Identifier: Apache-2.0
"""An attention layer under torch.compile(fullgraph=True): equal to eager, cache writes included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hpcattn
from batches import cumulative, int32, random

HEADS, KV_HEADS, HEAD_DIM, PAGE = 4, 2, 64, 16


class Layer(nn.Module):
    """QKV projection, QK-norm + RoPE + KV store, paged attention, output projection."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        width = HEADS * HEAD_DIM
        self.qkv = nn.Linear(width, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.q_norm = nn.Parameter(torch.rand(HEAD_DIM, generator=generator) + 0.5)
        self.k_norm = nn.Parameter(torch.rand(HEAD_DIM, generator=generator) + 0.5)
        for linear in (self.qkv, self.out):
            linear.weight.data = random(tuple(linear.weight.shape), torch.float32, generator) * 0.08
        angles = torch.arange(200)[:, None] * (0.8 ** torch.arange(HEAD_DIM // 2))[None]
        self.cos_sin = nn.Buffer(torch.cat([angles.cos(), angles.sin()], -1))
        self.to(dtype)

    def forward(self, x: torch.Tensor, cache: Any, step: dict[str, Any]) -> torch.Tensor:
        qkv = self.qkv(x).view(-1, HEADS + 2 * KV_HEADS, HEAD_DIM)
        q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], 1)
        k_cache, v_cache = cache.unbind(0) if isinstance(cache, torch.Tensor) else cache
        q, _ = hpcattn.rope_norm_store_kv(
            q,
            k,
            v,
            self.cos_sin,
            cu_seqlens_q=step["cu_seqlens_q"],
            kv_lens=step["kv_lens"],
            page_table=step["page_table"],
            k_cache=k_cache,
            v_cache=v_cache,
            norm_policy="norm_then_rope",
            q_norm_weight=self.q_norm,
            k_norm_weight=self.k_norm,
            norm_eps=1e-6,
        )
        out = hpcattn.paged_attention(
            q, k_cache, v_cache, **step, scale=HEAD_DIM**-0.5, window=40, plan=None
        )
        return self.out(out.flatten(1))


def steps() -> list[tuple[int, dict[str, Any]]]:
    """A prefill of 20 and 9 tokens, then steps that decode both, once with 2 speculative tokens."""
    table = torch.tensor([[3, 1, 5], [0, 4, 2]], dtype=torch.int32)
    lengths = [([20, 9], [20, 9]), ([1, 1], [21, 10]), ([1, 3], [22, 13]), ([1, 1], [23, 14])]
    return [
        (
            sum(new),
            {"page_table": table, "cu_seqlens_q": cumulative(new), "kv_lens": int32(total)},
        )
        for new, total in lengths
    ]


def serve(
    layer: Any, dtype: torch.dtype, apart: bool = False
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The outputs of all steps, and the cache that they leave.

    Args:
        layer: Eager or compiled.
        dtype: Of everything.
        apart: K and V as two tensors; else as halves of one, which the layer takes apart.
    """
    generator = torch.Generator().manual_seed(1)
    cache = torch.zeros(2, 6, PAGE, KV_HEADS, HEAD_DIM, dtype=dtype)
    given = (cache[0].clone(), cache[1].clone()) if apart else cache
    outputs = [
        layer(random((tokens, HEADS * HEAD_DIM), dtype, generator), given, step)
        for tokens, step in steps()
    ]
    return outputs, torch.stack(list(given))


def check_equal(
    layer: nn.Module, compiled: Any, dtype: torch.dtype, tolerance: float, apart: bool = False
) -> None:
    expected, expected_cache = serve(layer, dtype)
    hpcattn.reset_call_counts()
    outputs, cache = serve(compiled, dtype, apart)
    counts = hpcattn.call_counts()
    assert counts["paged_attention"] == counts["rope_norm_store_kv"] == len(expected)
    for step, (got, wanted) in enumerate(zip(outputs, expected, strict=True)):
        torch.testing.assert_close(got, wanted, atol=tolerance, rtol=0, msg=f"step {step}")
    torch.testing.assert_close(cache, expected_cache, atol=tolerance, rtol=0)
    assert bool(expected_cache.any()), "the cache was written"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_layer_captured_whole(dtype: torch.dtype, dynamic: bool) -> None:
    torch.compiler.reset()
    layer = Layer(dtype)
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    check_equal(layer, compiled, dtype, tolerance=0.0)


# With halves of one tensor whose size is symbolic, Inductor of torch 2.11 gives the second half
# the offset of the first; the operator refuses that call, since the two share memory. A pool of
# fixed size is not symbolic, unless dynamic=True makes it so.
@pytest.mark.parametrize(("dynamic", "apart"), [(None, False), (True, True)])
def test_a_layer_compiled_by_inductor(dynamic: bool | None, apart: bool) -> None:
    torch.compiler.reset()
    layer = Layer(torch.float32)
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic)
    check_equal(layer, compiled, torch.float32, tolerance=1e-5, apart=apart)


def test_every_operator_in_one_graph() -> None:
    torch.compiler.reset()
    generator = torch.Generator().manual_seed(2)
    k, v = (random((6, 2, 64), torch.float32, generator) for _ in range(2))
    q = random((6, 4, 64), torch.float32, generator)
    lengths = cumulative([4, 2])

    def compute(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cache: torch.Tensor) -> Any:
        hpcattn.store_kv(k, v, cache[0], cache[1], torch.arange(6))
        options: dict[str, Any] = {"scale": 0.1, "return_lse": True}
        packed = {"cu_seqlens_q": lengths, "cu_seqlens_k": lengths}
        first = hpcattn.packed_attention(q, k, v, **packed, **options)
        second = hpcattn.packed_attention(q, v, k, **packed, causal=False, **options)
        out, lse = hpcattn.merge_partials([first[0], second[0]], [first[1], second[1]])
        return out * 2, lse, cache.sum()

    caches = [torch.zeros(2, 1, 8, 2, 64) for _ in range(2)]
    expected = compute(q, k, v, caches[0])
    got = torch.compile(compute, fullgraph=True, backend="aot_eager")(q, k, v, caches[1])
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, atol=0, rtol=0)
    assert torch.equal(caches[0], caches[1])


def test_a_plan_made_inside_of_the_graph() -> None:
    torch.compiler.reset()
    q, k = torch.randn(6, 4, 64), torch.randn(9, 2, 64)
    ends = {"cu_seqlens_q": cumulative([4, 2]), "cu_seqlens_k": cumulative([5, 4])}
    group = hpcattn.AttentionGroup.of(q, k)
    plan = torch.zeros(hpcattn.plan_words(group, max_requests=2, max_tokens=6), dtype=torch.int32)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compute(q: torch.Tensor, k: torch.Tensor, kv_lens: torch.Tensor) -> Any:
        inside = hpcattn.AttentionGroup.of(q, k)
        hpcattn.plan_attention(inside, ends["cu_seqlens_q"], kv_lens, plan=plan)
        return hpcattn.packed_attention(q, k, k, **ends, scale=0.1, plan=plan)

    expected = hpcattn.packed_attention(q, k, k, **ends, scale=0.1)
    assert torch.equal(compute(q, k, int32([5, 4])), expected)


def test_mistakes_and_gradients_are_found_while_tracing() -> None:
    torch.compiler.reset()
    q, lengths = torch.randn(6, 4, 64), cumulative([6])

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compute(q: torch.Tensor, k: torch.Tensor) -> Any:
        return hpcattn.packed_attention(
            q, k, k, cu_seqlens_q=lengths, cu_seqlens_k=lengths, scale=0.1
        )

    with pytest.raises(Exception, match=r"q has 4 heads and k has 3"):
        compute(q, torch.randn(6, 3, 64))
    with torch.enable_grad(), pytest.raises(Exception, match="q requires grad, and no gradient is"):
        compute(q.clone().requires_grad_(), q)
    assert compute(q, q).shape == q.shape
