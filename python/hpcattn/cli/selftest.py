# SPDX-License-Identifier: Apache-2.0
"""Each operator once, on a few numbers, against plain torch: does this installation compute?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

import hpcattn

_TOLERANCE = 1e-5
_SCALE = 0.125
_DETAIL_LENGTH = 200


@dataclass(frozen=True)
class SelfTest:
    """What one operator did."""

    operator: str
    passed: bool
    detail: str


def _qkv() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(5, 4, 64, generator=generator)
    k = torch.randn(21, 2, 64, generator=generator)
    return q, k, torch.randn(21, 2, 64, generator=generator)


def _expected(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of the last tokens, head by head, and its LSE."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * _SCALE
    column = torch.arange(k.shape[0])
    position = torch.arange(k.shape[0] - q.shape[0], k.shape[0])[:, None]
    scores = scores.masked_fill(column > position, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v), scores.logsumexp(-1).T


def _cache_of(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens of x in three pages of 8 out of order, and their page table."""
    pages = torch.full((4, 8, *x.shape[1:]), float("nan"))
    table = torch.tensor([[2, 0, 3]], dtype=torch.int32)
    for index, first in enumerate(range(0, x.shape[0], 8)):
        part = x[first : first + 8]
        pages[int(table[0, index]), : part.shape[0]] = part
    return pages, table


def _int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, atol=_TOLERANCE, rtol=_TOLERANCE)


def _paged_attention() -> None:
    q, k, v = _qkv()
    (k_cache, table), (v_cache, _) = _cache_of(k), _cache_of(v)
    out = hpcattn.paged_attention(
        q,
        k_cache,
        v_cache,
        page_table=table,
        cu_seqlens_q=_int32(0, 5),
        kv_lens=_int32(21),
        scale=_SCALE,
        return_lse=True,
    )
    for got, want in zip(out, _expected(q, k, v), strict=True):
        _close(got, want)


def _packed_attention() -> None:
    q, k, v = _qkv()
    out = hpcattn.packed_attention(
        q, k, v, cu_seqlens_q=_int32(0, 5), cu_seqlens_k=_int32(0, 21), scale=_SCALE
    )
    assert isinstance(out, torch.Tensor)
    _close(out, _expected(q, k, v)[0])


def _merge_partials() -> None:
    q, k, v = _qkv()
    # The last query token alone, over the first and the other keys.
    halves = [_expected(q[4:], k[part], v[part]) for part in (slice(0, 9), slice(9, 21))]
    out, lse = hpcattn.merge_partials(
        [half[0] for half in halves], [half[1].contiguous() for half in halves]
    )
    want, want_lse = _expected(q[4:], k, v)
    _close(out, want)
    _close(lse, want_lse)


def _store_kv() -> None:
    _, k, v = _qkv()
    k_cache, v_cache = torch.zeros(4, 8, 2, 64), torch.zeros(4, 8, 2, 64)
    slots = torch.randperm(32, generator=torch.Generator().manual_seed(1))[:21]
    hpcattn.store_kv(k, v, k_cache, v_cache, slots)
    _close(k_cache.flatten(0, 1)[slots], k)
    _close(v_cache.flatten(0, 1)[slots], v)


def _rope_norm_store_kv() -> None:
    q, k, v = _qkv()
    k, v = k[:5], v[:5]
    angle = torch.arange(5)[:, None] * (100.0 ** (-torch.arange(32) / 32))
    k_cache, v_cache = torch.zeros(1, 8, 2, 64), torch.zeros(1, 8, 2, 64)
    out, _ = hpcattn.rope_norm_store_kv(
        q,
        k,
        v,
        torch.cat([angle.cos(), angle.sin()], dim=1),
        positions=torch.arange(5),
        slot_mapping=torch.arange(5),
        k_cache=k_cache,
        v_cache=v_cache,
    )
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    for x, got in ((q, out), (k, k_cache[0, :5])):
        low, high = x.chunk(2, dim=-1)
        _close(got, torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1))
    _close(v_cache[0, :5], v)


_TESTS: dict[str, Callable[[], None]] = {
    "paged_attention": _paged_attention,
    "packed_attention": _packed_attention,
    "merge_partials": _merge_partials,
    "store_kv": _store_kv,
    "rope_norm_store_kv": _rope_norm_store_kv,
}


def run_all() -> list[SelfTest]:
    """Runs every operator; a failure is a result and not an exception."""
    results = []
    with torch.inference_mode():
        for operator, test in _TESTS.items():
            try:
                test()
            except Exception as error:
                text = " ".join(str(error).split()) or type(error).__name__
                results.append(SelfTest(operator, False, text[:_DETAIL_LENGTH]))
            else:
                results.append(SelfTest(operator, True, "equals plain torch"))
    return results
