# SPDX-License-Identifier: Apache-2.0
"""Random batches whose unused memory is poisoned, and how far a result may be from the
reference."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
LAYOUTS = ("nhd", "hnd", "halves", "interleaved")


def int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def cumulative(lengths: list[int]) -> torch.Tensor:
    return int32([sum(lengths[:i]) for i in range(len(lengths) + 1)])


def random(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator).to(dtype)


def nan_like(tensor: torch.Tensor) -> torch.Tensor:
    """All NaN, in float8 too (a bit pattern that both kinds read as NaN)."""
    if tensor.dtype in FP8:
        tensor.view(torch.uint8).fill_(0x7F)
    else:
        tensor.fill_(float("nan"))
    return tensor


def caches(
    num_pages: int, page_size: int, heads: int, head_dim: int, dtype: torch.dtype, layout: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """A K and a V cache [pages, page_size, heads, head_dim], all NaN, in one of the layouts."""
    logical = (num_pages, page_size, heads, head_dim)
    if layout == "nhd":
        pair = torch.empty(2, *logical, dtype=dtype)
        nan_like(pair)
        return pair[0], pair[1]
    if layout == "hnd":
        pair = torch.empty(2, num_pages, heads, page_size, head_dim, dtype=dtype)
        nan_like(pair)
        return pair[0].transpose(1, 2), pair[1].transpose(1, 2)
    if layout == "halves":
        pair = torch.empty(num_pages, 2, page_size, heads, head_dim, dtype=dtype)
        nan_like(pair)
        return pair[:, 0], pair[:, 1]
    pair = torch.empty(num_pages, page_size, heads, 2 * head_dim, dtype=dtype)
    nan_like(pair)
    return pair[..., :head_dim], pair[..., head_dim:]


@dataclasses.dataclass
class Batch:
    """What one attention call gets, but for its options."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    page_table: torch.Tensor
    cu_seqlens_q: torch.Tensor
    kv_lens: torch.Tensor
    scales: dict[str, torch.Tensor]

    def paged(self) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
        """Positional and keyword arguments of paged_attention."""
        lengths = {
            "page_table": self.page_table,
            "cu_seqlens_q": self.cu_seqlens_q,
            "kv_lens": self.kv_lens,
        }
        return (self.q, self.k_cache, self.v_cache), {**lengths, **self.scales}


def make_batch(
    *,
    seed: int = 0,
    lengths: list[tuple[int, int]],
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 64,
    page_size: int = 16,
    q_dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    layout: str = "nhd",
    padding: int = 0,
    per_head_scales: bool = False,
) -> Batch:
    """A batch of requests of (query tokens, KV tokens), pages in random order, the rest poisoned.

    Unused entries of the page table are far out of the pool, unused slots and pages NaN, and
    `padding` rows of q that belong to no request are NaN too.
    """
    generator = torch.Generator().manual_seed(seed)
    kv_dtype = kv_dtype or q_dtype
    num_heads, num_kv_heads = heads
    pages_of = [-(-kv // page_size) for _, kv in lengths]
    num_pages = sum(pages_of) + 2
    k_cache, v_cache = caches(num_pages, page_size, num_kv_heads, head_dim, kv_dtype, layout)
    page_table = torch.full((len(lengths), max([*pages_of, 1]) + 1), 2**31 - 1, dtype=torch.int32)
    free = torch.randperm(num_pages, generator=generator).tolist()
    for r, (_, kv_len) in enumerate(lengths):
        for p in range(pages_of[r]):
            page = free.pop()
            page_table[r, p] = page
            live = min(page_size, kv_len - p * page_size)
            shape = (live, num_kv_heads, head_dim)
            k_cache[page, :live] = random(shape, kv_dtype, generator)
            v_cache[page, :live] = random(shape, kv_dtype, generator)
    num_tokens = sum(q for q, _ in lengths)
    q = nan_like(torch.empty(num_tokens + padding, num_heads, head_dim, dtype=q_dtype))
    q[:num_tokens] = random((num_tokens, num_heads, head_dim), q_dtype, generator)
    scales: dict[str, torch.Tensor] = {}
    if q_dtype in FP8:
        scales["q_scale"] = torch.rand(q.shape[:2], generator=generator) + 0.5
    if kv_dtype in FP8:
        shape = (num_kv_heads,) if per_head_scales else (1,)
        scales["k_scale"] = torch.rand(shape, generator=generator) + 0.5
        scales["v_scale"] = torch.rand(shape, generator=generator) + 0.5
    cu_seqlens_q = cumulative([q for q, _ in lengths])
    kv_lens = int32([kv for _, kv in lengths])
    return Batch(q, k_cache, v_cache, page_table, cu_seqlens_q, kv_lens, scales)


def assert_close(
    got: torch.Tensor, expected: torch.Tensor, what: str, *, magnitude: float = 1.0
) -> None:
    """Element by element: the rounding of got's dtype, and float32 sums of values up to
    `magnitude`.

    Args:
        got: Of any float dtype.
        expected: In float64; infinite exactly where `got` is.
        what: Begins the message of a failure.
        magnitude: Of the terms that were summed.
    """
    got64 = got.to(torch.float64)
    info = torch.finfo(got.dtype)
    allowed = 0.5 * info.eps * expected.abs() + 0.5 * info.smallest_normal * info.eps
    allowed = allowed + 4e-6 * magnitude
    same = got64 == expected  # infinities
    error = torch.where(same, 0.0, (got64 - expected).abs())
    bad = ~(error <= allowed)
    if bool(bad.any()):
        excess = torch.where(bad, error.nan_to_num(float("inf")), 0.0)
        worst = int(excess.argmax())
        where = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), got.shape))
        raise AssertionError(
            f"{what}: {int(bad.sum())} of {got.numel()} elements differ; the worst at {where}: got "
            f"{float(got64[where])}, expected {float(expected[where])}, allowed "
            f"{float(allowed[where]):.3g}"
        )
