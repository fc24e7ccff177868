# SPDX-License-Identifier: Apache-2.0
"""The fused prologue (QK-norm, RoPE, KV write) beside the same steps in unfused torch."""

from __future__ import annotations

from collections.abc import Callable

import torch

import hpcattn
from hpcattn.bench.cases import DTYPES, RopeCase
from hpcattn.bench.check import CheckResult, compare

OURS = "hpcattn"
UNFUSED = "torch, unfused"

NOTES = {
    OURS: "rope_norm_store_kv: norm, rotation and KV write in one pass",
    UNFUSED: "rms_norm, rotation by halves, index_copy_ into the same pages; cos and sin of the "
    "step's tokens looked up beforehand, untimed",
}

_EPS = 1e-6
_THETA = 10000.0


class RopeBench:
    """The tensors of one case, what to time on them, and the check of our answer."""

    def __init__(self, case: RopeCase, seed: int = 0, device: torch.device | None = None) -> None:
        """Draws q, k, v as views of one packed projection, and an empty cache.

        Args:
            case: The shape.
            seed: Of all random values.
            device: Where the tensors lie; None: the CPU.
        """
        self.case = case
        self.skipped: dict[str, str] = {}
        device = device or torch.device("cpu")
        generator = torch.Generator(device).manual_seed(seed)
        heads, batch, size = case.heads, case.batch, case.page_size
        self.dtype: torch.dtype = getattr(torch, DTYPES[case.dtype])
        width = heads.num_q_heads + 2 * heads.num_kv_heads
        shape: tuple[int, ...] = (batch.num_tokens, width, heads.head_dim)
        packed = torch.randn(shape, generator=generator, device=device).to(self.dtype)
        self.q = packed[:, : heads.num_q_heads]
        self.k = packed[:, heads.num_q_heads : -heads.num_kv_heads]
        self.v = packed[:, -heads.num_kv_heads :]
        noise = 0.1 * torch.randn(2, heads.head_dim, generator=generator, device=device)
        self.q_weight, self.k_weight = (1 + noise).to(self.dtype).unbind()

        # The table as models keep it: cosines, then sines, float32.
        longest = max(batch.kv_lens)
        frequency = _THETA ** (-torch.arange(0, heads.head_dim, 2) / heads.head_dim)
        angle = torch.arange(longest)[:, None] * frequency[None, :]
        self.cos_sin = torch.cat([angle.cos(), angle.sin()], dim=1).float().to(device)

        counts = [-(-kv_len // size) for kv_len in batch.kv_lens]
        order = torch.randperm(sum(counts), generator=generator, device=device).to(torch.int32)
        table = torch.full((batch.num_requests, max(counts)), -1, dtype=torch.int32, device=device)
        start = 0
        for request, count in enumerate(counts):
            table[request, :count] = order[start : start + count]
            start += count
        self.page_table = table
        shape = (sum(counts), size, heads.num_kv_heads, heads.head_dim)
        self.k_cache = torch.zeros(shape, dtype=self.dtype, device=device)
        self.v_cache = torch.zeros(shape, dtype=self.dtype, device=device)
        self.cu_seqlens_q = torch.tensor(batch.cu_seqlens_q(), dtype=torch.int32, device=device)
        self.kv_lens = torch.tensor(batch.kv_lens, dtype=torch.int32, device=device)
        positions, slots = [], []
        for pages, kv_len, rows in zip(table.tolist(), batch.kv_lens, batch.rows, strict=True):
            for position in range(kv_len - rows, kv_len):
                positions.append(position)
                slots.append(pages[position // size] * size + position % size)
        self.positions = torch.tensor(positions, device=device)
        self.slots = torch.tensor(slots, device=device)
        # Models look these up once a step, for all layers: no part of a layer's time.
        self.cos, self.sin = self.cos_sin[self.positions].to(self.dtype)[:, None].chunk(2, dim=-1)

    def ours(self) -> torch.Tensor:
        """One fused call; K and V land in the pages."""
        out, _ = hpcattn.rope_norm_store_kv(
            self.q,
            self.k,
            self.v,
            self.cos_sin,
            style="neox",
            cu_seqlens_q=self.cu_seqlens_q,
            kv_lens=self.kv_lens,
            page_table=self.page_table,
            k_cache=self.k_cache,
            v_cache=self.v_cache,
            norm_policy="norm_then_rope",
            q_norm_weight=self.q_weight,
            k_norm_weight=self.k_weight,
            norm_eps=_EPS,
        )
        return out

    def unfused(self) -> torch.Tensor:
        """The same in torch, an operator a step, in the activations' dtype as models do it."""
        cos, sin, rotated = self.cos, self.sin, []
        for x, weight in ((self.q, self.q_weight), (self.k, self.k_weight)):
            normed = torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, _EPS)
            low, high = normed.chunk(2, dim=-1)
            rotated.append(torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1))
        self.k_cache.flatten(0, 1).index_copy_(0, self.slots, rotated[1])
        self.v_cache.flatten(0, 1).index_copy_(0, self.slots, self.v)
        return rotated[0]

    def contenders(self) -> dict[str, Callable[[], object]]:
        """What to time, by name."""
        return {OURS: self.ours, UNFUSED: self.unfused}

    def _reference(
        self, x: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Norm and rotation in float64, and the magnitudes that each element sums."""
        x = x.double()
        normed = x / (x.square().mean(-1, keepdim=True) + _EPS).sqrt() * weight.double()
        cos, sin = self.cos_sin[self.positions].double()[:, None].chunk(2, dim=-1)
        low, high = normed.chunk(2, dim=-1)
        want = torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
        sums = [(low * cos).abs() + (high * sin).abs(), (high * cos).abs() + (low * sin).abs()]
        return want, torch.cat(sums, dim=-1)

    def check(self) -> CheckResult:
        """Holds q, K and V of the fused call against float64.

        The bound of an element: half a step of its dtype for the last rounding (doubled, so that a
        tie may fall either way), and float32 arithmetic before it on the magnitudes summed.

        Raises:
            RuntimeError: An element is off by more, or V differs in any bit.
        """
        out = self.ours()
        eps, eps32 = torch.finfo(self.dtype).eps, torch.finfo(torch.float32).eps
        stored_k = self.k_cache.flatten(0, 1)[self.slots]
        stored_v = self.v_cache.flatten(0, 1)[self.slots]
        worst, error = 0.0, 0.0
        for name, got, x, weight in (
            ("q", out, self.q, self.q_weight),
            ("stored k", stored_k, self.k, self.k_weight),
        ):
            want, sums = self._reference(x, weight)
            bound = eps * want.abs() + 16 * eps32 * sums + torch.finfo(self.dtype).tiny
            worst = max(worst, compare(f"{self.case.name}, {name}", got, want, bound))
            error = max(error, float((got.double() - want).abs().max()))
        if not torch.equal(stored_v, self.v):
            raise RuntimeError(
                f"{self.case.name}: the V in the cache differs from the V given. Nothing was "
                "timed. Please report it with the command that showed it."
            )
        return CheckResult(out.shape[0], out.shape[0], error, worst)
