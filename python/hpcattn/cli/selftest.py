# SPDX-License-Identifier: Apache-2.0
"""Each operator once, on a few numbers, against plain torch: does this installation compute?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

import hpcattn

_SCALE = 0.125
_DETAIL_LENGTH = 200


@dataclass(frozen=True)
class SelfTest:
    """What one operator did."""

    operator: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Place:
    """Where the operators run, and on which numbers; what they give is compared on the CPU."""

    device: str
    dtype: torch.dtype
    tolerance: float

    def values(self, *shape: int, seed: int) -> torch.Tensor:
        """Random numbers that `dtype` can hold, as float32 on the CPU."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, generator=generator).to(self.dtype).float()

    def qkv(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """5 query tokens of 4 heads, 21 keys and values of 2."""
        return (
            self.values(5, 4, 64, seed=0),
            self.values(21, 2, 64, seed=1),
            self.values(21, 2, 64, seed=2),
        )

    def put(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Numbers in `dtype`, there; integers as they are."""
        return tuple(
            x.to(self.device, self.dtype if x.is_floating_point() else x.dtype) for x in tensors
        )

    def ints(self, *values: int) -> torch.Tensor:
        """An int32 tensor, there."""
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def close(self, got: torch.Tensor, want: torch.Tensor) -> None:
        """Raises where they differ by more than the dtype explains."""
        torch.testing.assert_close(
            got.cpu().float(), want, atol=self.tolerance, rtol=self.tolerance
        )


CPU = Place("cpu", torch.float32, 1e-5)
CUDA = Place("cuda", torch.float16, 4e-3)


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


def _paged_attention(place: Place) -> None:
    q, k, v = place.qkv()
    (k_cache, table), (v_cache, _) = _cache_of(k), _cache_of(v)
    q_there, k_there, v_there, table = place.put(q, k_cache, v_cache, table)
    out = hpcattn.paged_attention(
        q_there,
        k_there,
        v_there,
        page_table=table,
        cu_seqlens_q=place.ints(0, 5),
        kv_lens=place.ints(21),
        scale=_SCALE,
        return_lse=True,
    )
    for got, want in zip(out, _expected(q, k, v), strict=True):
        place.close(got, want)


def _packed_attention(place: Place) -> None:
    q, k, v = place.qkv()
    q_there, k_there, v_there = place.put(q, k, v)
    out = hpcattn.packed_attention(
        q_there,
        k_there,
        v_there,
        cu_seqlens_q=place.ints(0, 5),
        cu_seqlens_k=place.ints(0, 21),
        scale=_SCALE,
    )
    assert isinstance(out, torch.Tensor)
    place.close(out, _expected(q, k, v)[0])


def _merge_partials(place: Place) -> None:
    q, k, v = place.qkv()
    # The last query token alone, over the first and the other keys.
    halves = [_expected(q[4:], k[part], v[part]) for part in (slice(0, 9), slice(9, 21))]
    out, lse = hpcattn.merge_partials(
        list(place.put(*(half[0] for half in halves))),
        [half[1].contiguous().to(place.device) for half in halves],
    )
    want, want_lse = _expected(q[4:], k, v)
    place.close(out, want)
    place.close(lse, want_lse)


def _store_kv(place: Place) -> None:
    _, k, v = place.qkv()
    k_cache, v_cache = place.put(torch.zeros(4, 8, 2, 64), torch.zeros(4, 8, 2, 64))
    slots = torch.randperm(32, generator=torch.Generator().manual_seed(1))[:21]
    k_there, v_there = place.put(k, v)
    hpcattn.store_kv(k_there, v_there, k_cache, v_cache, slots.to(place.device))
    place.close(k_cache.cpu().flatten(0, 1)[slots], k)
    place.close(v_cache.cpu().flatten(0, 1)[slots], v)


def _rope_norm_store_kv(place: Place) -> None:
    q, k, v = place.qkv()
    k, v = k[:5], v[:5]
    angle = torch.arange(5)[:, None] * (100.0 ** (-torch.arange(32) / 32))
    k_cache, v_cache = place.put(torch.zeros(1, 8, 2, 64), torch.zeros(1, 8, 2, 64))
    q_there, k_there, v_there = place.put(q, k, v)
    out, _ = hpcattn.rope_norm_store_kv(
        q_there,
        k_there,
        v_there,
        torch.cat([angle.cos(), angle.sin()], dim=1).to(place.device),
        positions=torch.arange(5, device=place.device),
        slot_mapping=torch.arange(5, device=place.device),
        k_cache=k_cache,
        v_cache=v_cache,
    )
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    for x, got in ((q, out), (k, k_cache[0, :5])):
        low, high = x.chunk(2, dim=-1)
        place.close(got, torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1))
    place.close(v_cache[0, :5], v)


_TESTS: dict[str, Callable[[Place], None]] = {
    "paged_attention": _paged_attention,
    "packed_attention": _packed_attention,
    "merge_partials": _merge_partials,
    "store_kv": _store_kv,
    "rope_norm_store_kv": _rope_norm_store_kv,
}


def run_all(place: Place = CPU) -> list[SelfTest]:
    """Runs every operator; a failure is a result and not an exception."""
    results = []
    with torch.inference_mode():
        for operator, test in _TESTS.items():
            try:
                test(place)
            except Exception as error:
                text = " ".join(str(error).split()) or type(error).__name__
                results.append(SelfTest(operator, False, text[:_DETAIL_LENGTH]))
            else:
                results.append(SelfTest(operator, True, "equals plain torch"))
    return results
