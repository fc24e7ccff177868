# SPDX-License-Identifier: Apache-2.0
"""Every operator once, against torch's own arithmetic. Needs torch and hpcattn alone.

Run by test_wheel.py in virtual environments with other versions of torch.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import torch
import torch.nn.functional as F

import hpcattn


def int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got.float(), expected.float(), atol=2e-5, rtol=1e-2)


@contextlib.contextmanager
def refusal(kind: type[Exception], text: str) -> Iterator[None]:
    """The block raises this kind of error, with this text."""
    try:
        yield
    except Exception as error:
        if type(error) is kind and text in str(error):
            return
        raise
    raise AssertionError(f"expected {kind.__name__}: {text}")


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offset: int) -> torch.Tensor:
    """[T, H, D] by torch, causal, two query heads a KV head."""
    mask = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool).tril(offset)
    heads = [x.transpose(0, 1) for x in (q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))]
    return F.scaled_dot_product_attention(*heads, attn_mask=mask, scale=0.125).transpose(0, 1)


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(5, 4, 64), torch.randn(20, 2, 64), torch.randn(20, 2, 64)
    caches = torch.full((2, 3, 16, 2, 64), float("nan"))
    slots = torch.cat([torch.arange(32, 48), torch.arange(4)])
    hpcattn.store_kv(k, v, caches[0], caches[1], slots)
    close(caches[0][2], k[:16])

    lengths = {"cu_seqlens_q": int32([0, 5]), "kv_lens": int32([20])}
    table = torch.tensor([[2, 0]], dtype=torch.int32)
    paged = {**lengths, "page_table": table, "scale": 0.125}
    expected = attention(q, k, v, 15)
    plan = hpcattn.plan_attention(hpcattn.AttentionGroup.of(q, caches[0]), **lengths)
    assert hpcattn.plan_summary(plan)["num_tokens"] == 5
    close(hpcattn.paged_attention(q, caches[0], caches[1], **paged, plan=plan), expected)

    ends = {"cu_seqlens_q": int32([0, 5]), "cu_seqlens_k": int32([0, 20])}
    out, lse = hpcattn.packed_attention(q, k, v, **ends, scale=0.125, return_lse=True)
    close(out, expected)
    merged, _ = hpcattn.merge_partials([out, out * 7], [lse, torch.full_like(lse, -torch.inf)])
    close(merged, expected)

    scale = torch.tensor([0.05])
    fp8 = caches.nan_to_num().div(0.05).to(torch.float8_e4m3fn)
    with_scales = {**paged, "k_scale": scale, "v_scale": scale}
    rounded = [(x / 0.05).to(torch.float8_e4m3fn).float() * 0.05 for x in (k, v)]
    got = hpcattn.paged_attention(q, fp8[0], fp8[1], **with_scales)
    close(got, attention(q, *rounded, 15))

    table = torch.cat([torch.ones(64, 32), torch.zeros(64, 32)], -1)  # turns by 0 degrees
    weights = {"q_norm_weight": torch.ones(64), "k_norm_weight": torch.ones(64), "norm_eps": 1e-6}
    norm = {"norm_policy": "norm_then_rope", **weights}
    out_q, _ = hpcattn.rope_norm_store_kv(q, q, q, table, positions=torch.arange(5), **norm)
    close(out_q, q / torch.sqrt(q.pow(2).mean(-1, keepdim=True) + 1e-6))

    with refusal(ValueError, "scale is nan"):
        hpcattn.paged_attention(q, caches[0], caches[1], **{**paged, "scale": float("nan")})
    with refusal(NotImplementedError, "head_dim is 40"):
        hpcattn.packed_attention(q[..., :40], k[..., :40], v[..., :40], **ends, scale=1.0)
    with torch.enable_grad(), refusal(NotImplementedError, "requires grad"):
        hpcattn.packed_attention(q.clone().requires_grad_(), k, v, **ends, scale=1.0)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> torch.Tensor:
        return hpcattn.paged_attention(q, k_cache, v_cache, **paged) + 1

    close(compiled(q, caches[0], caches[1]), expected + 1)
    counts = hpcattn.call_counts()
    assert all(counts.values()), counts
    print(json.dumps({"torch": torch.__version__, "hpcattn": hpcattn.__version__, "calls": counts}))


if __name__ == "__main__":
    main()
