# SPDX-License-Identifier: Apache-2.0
"""Batches for the drop-in `hpc`, on any device, and what its calls must answer for them.

The expected numbers are float64 on the CPU, by the formulas of reference.py.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

import hpcattn.integrations.hpc as hpc
import reference
from batches import FP8, Batch, make_batch

E4M3 = torch.float8_e4m3fn


def to_device(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A copy there with the same strides, over a copy of the whole storage."""
    flat = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    moved = flat.view(torch.uint8).to(device).view(tensor.dtype)
    return moved.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def assert_near(
    got: torch.Tensor, expected: torch.Tensor, v_max: float, what: str, e4m3: bool = False
) -> None:
    """Element by element: rounding of the output, and of probabilities that are narrow on a GPU."""
    info = torch.finfo(got.dtype)
    # A GPU's tensor cores take probabilities as 16-bit numbers, or of e4m3 prompts as those; the
    # CPU keeps float32.
    of_probabilities = 4e-6 if got.device.type == "cpu" else 2.0**-5 if e4m3 else 4e-3
    allowed = 0.51 * info.eps * expected.abs() + of_probabilities * v_max + 1e-30
    error = (got.cpu().double() - expected).abs()
    bad = ~(error <= allowed)
    assert not bool(bad.any()), (
        f"{what}: {int(bad.sum())} of {bad.numel()} elements differ, by up to "
        f"{float(error.nan_to_num(float('inf')).max())}, allowed {float(allowed.min())}"
    )


@dataclasses.dataclass
class Case:
    """One batch, its answer, and its tensors on the device."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_ids: torch.Tensor
    kv_lens: torch.Tensor
    cu_seqlens_q: torch.Tensor
    scales: dict[str, torch.Tensor]
    rows: int
    expected: torch.Tensor
    v_max: float

    @property
    def device(self) -> str:
        return str(self.q.device)

    def check(self, got: torch.Tensor, what: str, prompts: bool = False) -> None:
        assert_near(got, self.expected, self.v_max, what, prompts and self.q.dtype == E4M3)

    def decode(self, **options: Any) -> torch.Tensor:
        """The decode call of this case's dtype; `new_kv_included` decides what lengths it gets."""
        included = options.get("new_kv_included", False)
        lengths = self.kv_lens if included else self.kv_lens - self.rows
        shared = (self.q, self.k_cache, self.v_cache, self.block_ids, lengths)
        if self.q.dtype == E4M3:
            scales = (self.scales["q_scale"], self.scales["k_scale"], self.scales["v_scale"])
            return hpc.attention_decode_fp8(*shared, *scales, mtp=self.rows - 1, **options)
        return hpc.attention_decode_bf16(*shared, mtp=self.rows - 1, **options)


def make_case(
    device: str = "cpu",
    *,
    lengths: list[tuple[int, int]],
    dtype: torch.dtype = torch.bfloat16,
    **options: Any,
) -> Case:
    """A batch of (query tokens, KV tokens); `rows` of it counts where all requests have as many."""
    batch: Batch = make_batch(lengths=lengths, q_dtype=dtype, **options)
    (q, k_cache, v_cache), arguments = batch.paged()
    expected, _ = reference.paged_attention(
        q, k_cache, v_cache, **arguments, scale=q.shape[-1] ** -0.5
    )
    total = int(batch.cu_seqlens_q[-1])
    expected[total:] = 0.0
    live, _, _ = reference.gather(v_cache, batch.page_table, batch.kv_lens)
    v_max = float(live.double().abs().max()) if live.numel() else 1.0
    if "v_scale" in batch.scales:
        v_max *= float(batch.scales["v_scale"].max())
    move = {name: to_device(value, device) for name, value in batch.scales.items()}
    return Case(
        to_device(q, device),
        to_device(k_cache, device),
        to_device(v_cache, device),
        to_device(batch.page_table, device),
        to_device(batch.kv_lens, device),
        to_device(batch.cu_seqlens_q, device),
        move,
        lengths[0][0],
        expected,
        v_max,
    )


def prefill_scales(scales: torch.Tensor, lengths: list[int], width: int) -> torch.Tensor:
    """Scales [tokens, heads] as [requests, heads, width], request by request; the rest NaN."""
    result = scales.new_full((len(lengths), scales.shape[1], width), float("nan"))
    start = 0
    for r, n in enumerate(lengths):
        result[r, :, :n] = scales[start : start + n].T
        start += n
    return result


@dataclasses.dataclass
class Prologue:
    """Arguments of the rope calls, and what they must give."""

    arguments: dict[str, torch.Tensor]
    positions: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    slots: list[tuple[int, int]]  # page and place of each token
    lengths: list[int]

    def expected(self, x: torch.Tensor, policy: int, weight: torch.Tensor | None) -> torch.Tensor:
        return reference.rope_norm(
            x,
            self.arguments["cos_sin"].cpu(),
            self.positions,
            norm_policy=("none", "rope_then_norm", "norm_then_rope")[policy],
            weight=None if weight is None else weight.cpu(),
            eps=hpc.norm_eps(),
        )


def make_prologue(
    device: str = "cpu",
    *,
    lengths: list[tuple[int, int]],
    heads: tuple[int, int] = (8, 2),
    head_dim: int = 64,
    page_size: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    kv_dtype: torch.dtype | None = None,
    padding: int = 0,
    seed: int = 0,
) -> Prologue:
    """Requests of (new tokens, KV tokens with them), and `padding` rows of NaN after them."""
    generator = torch.Generator().manual_seed(seed)
    num_tokens = sum(n for n, _ in lengths)
    total = heads[0] + 2 * heads[1]
    qkv = torch.full((num_tokens + padding, total * head_dim), float("nan"), dtype=dtype)
    qkv[:num_tokens] = torch.randn(num_tokens, total * head_dim, generator=generator).to(dtype)
    longest = max(kv for _, kv in lengths)
    angles = torch.outer(
        torch.arange(longest + 1).float(), 1e4 ** (-torch.arange(0, head_dim, 2) / head_dim)
    )
    cos_sin = torch.cat([angles.cos(), angles.sin()], -1)
    max_pages = -(-longest // page_size)
    num_pages = len(lengths) * max_pages + 1
    table = torch.randperm(num_pages, generator=generator)[:-1].int().view(len(lengths), max_pages)
    cache = torch.zeros(num_pages, 2, page_size, heads[1], head_dim, dtype=kv_dtype or dtype)
    if cache.dtype in FP8:
        cache.view(torch.uint8).fill_(0x7F)
    else:
        cache.fill_(float("nan"))
    cache = cache.to(device)
    starts = [0]
    positions: list[int] = []
    slots: list[tuple[int, int]] = []
    for r, (n, kv) in enumerate(lengths):
        starts.append(starts[-1] + n)
        for p in range(kv - n, kv):
            positions.append(p)
            slots.append((int(table[r, p // page_size]), p % page_size))
    rows = qkv[:num_tokens].view(num_tokens, total, head_dim)
    arguments = {
        "key_cache": cache[:, 0],
        "value_cache": cache[:, 1],
        "qkv": qkv.to(device),
        "cos_sin": cos_sin.to(device),
        "num_seqlen_per_req": torch.tensor([kv for _, kv in lengths], dtype=torch.int32).to(device),
        "q_index": torch.tensor(starts, dtype=torch.int32).to(device),
        "kvcache_indices": table.to(device),
    }
    return Prologue(
        arguments,
        torch.tensor(positions, dtype=torch.int64),
        rows[:, : heads[0]],
        rows[:, heads[0] : heads[0] + heads[1]],
        rows[:, heads[0] + heads[1] :],
        slots,
        [n for n, _ in lengths],
    )


def stored(cache: torch.Tensor, slots: list[tuple[int, int]]) -> torch.Tensor:
    """What the cache holds for each token."""
    pages = torch.tensor([page for page, _ in slots])
    places = torch.tensor([place for _, place in slots])
    return cache.cpu().view(torch.uint8)[pages, places].view(cache.dtype)


def assert_rounds_to(got: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    """The dtype's number nearest to `expected` up to a float32's doubt, saturated for float8."""
    assert got.dtype.is_floating_point
    limit = torch.finfo(got.dtype).max
    expected = expected.clamp(-limit, limit)
    near = reference.quantize(expected.float(), got.dtype).double()
    step = torch.finfo(got.dtype).eps * expected.abs() + torch.finfo(got.dtype).smallest_normal
    error = (got.cpu().double() - near).abs()
    assert bool((error <= 1.01 * step).all()), f"{what}: off by up to {float(error.max())}"
    share = float((error == 0).double().mean())
    assert share > 0.98, f"{what}: only {share:.3f} of the numbers are the nearest ones"
