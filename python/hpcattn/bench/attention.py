# SPDX-License-Identifier: Apache-2.0
"""Attention over pages beside torch's scaled_dot_product_attention over the same K and V."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

import hpcattn
from hpcattn.bench import machine
from hpcattn.bench.cases import DTYPES, AttentionCase
from hpcattn.bench.check import CheckResult, check_rows

OURS = "hpcattn"
SDPA_GQA = "sdpa enable_gqa"
SDPA_EXPANDED = "sdpa expanded"
SDPA_GATHER = "gather + sdpa"
SDPA_PACKED = "sdpa packed heads"

# What a row of the table means; printed under it.
NOTES = {
    OURS: "paged_attention on shuffled pages; the plan is made within the timed call",
    SDPA_GQA: "scaled_dot_product_attention(enable_gqa=True), K and V contiguous [B, H, S, D]",
    SDPA_EXPANDED: "the same with K and V copied to every query head beforehand, untimed",
    SDPA_GATHER: "pages gathered by index, then scaled_dot_product_attention(enable_gqa=True)",
    SDPA_PACKED: "decode alone: a caller's trick, the heads of a group passed as query rows",
}
# The forms that "SDPA" in a bar means: the faster of them counts.
SDPA_PLAIN = (SDPA_GQA, SDPA_EXPANDED)


@dataclass
class _Uniform:
    """The requests of a batch that have the same lengths: what one SDPA call can take."""

    requests: list[int]
    kv_len: int
    rows: int
    q: torch.Tensor  # [B, num_q_heads, rows, head_dim]
    k: torch.Tensor  # [B, num_kv_heads, seen, head_dim], contiguous
    v: torch.Tensor
    mask: torch.Tensor | None  # [rows, seen], None: causal by flag, or nothing to mask
    causal_flag: bool
    first: int  # tokens before `first` are out of every row's window, and left out of k and v


class AttentionBench:
    """The tensors of one case, what to time on them, and the check of our answer."""

    def __init__(
        self, case: AttentionCase, seed: int = 0, device: torch.device | None = None
    ) -> None:
        """Fills the pages and the contiguous copies.

        Args:
            case: The shape.
            seed: Of all random values.
            device: Where the tensors lie; None: the CPU.
        """
        self.case = case
        self.device = device or torch.device("cpu")
        self.skipped: dict[str, str] = {}
        # Of our call, where they are made beforehand.
        self.out: torch.Tensor | None = None
        self.plan: torch.Tensor | None = None
        device = self.device
        generator = torch.Generator(device).manual_seed(seed)
        heads, batch = case.heads, case.batch
        dtype: torch.dtype = getattr(torch, DTYPES[case.dtype])
        kv_dtype: torch.dtype = getattr(torch, DTYPES[case.kv_dtype])
        fp8 = case.kv_dtype.startswith("float8")
        self.scale = 1.0 / math.sqrt(heads.head_dim)
        self.k_scale = torch.tensor([0.02], device=device) if fp8 else None
        self.v_scale = torch.tensor([0.02], device=device) if fp8 else None

        counts = [-(-kv_len // case.page_size) for kv_len in batch.kv_lens]
        order = torch.randperm(sum(counts), generator=generator, device=device).to(torch.int32)
        shape = (batch.num_requests, max(counts))
        self.page_table = torch.full(shape, -1, dtype=torch.int32, device=device)
        start = 0
        for request, count in enumerate(counts):
            self.page_table[request, :count] = order[start : start + count]
            start += count
        self.k_cache = self._empty_cache(len(order), kv_dtype)
        self.v_cache = self._empty_cache(len(order), kv_dtype)
        q_shape = (batch.num_tokens, heads.num_q_heads, heads.head_dim)
        self.q = torch.randn(q_shape, generator=generator, device=device).to(dtype)
        self.cu_seqlens_q = torch.tensor(batch.cu_seqlens_q(), dtype=torch.int32, device=device)
        self.kv_lens = torch.tensor(batch.kv_lens, dtype=torch.int32, device=device)
        for request, kv_len in enumerate(batch.kv_lens):
            for cache, cache_scale in ((self.k_cache, self.k_scale), (self.v_cache, self.v_scale)):
                tokens = (kv_len, heads.num_kv_heads, heads.head_dim)
                values = torch.randn(tokens, generator=generator, device=device)
                stored = (values / cache_scale if cache_scale is not None else values).to(kv_dtype)
                self._fill(cache, request, stored)
        self._uniform = [self._make_uniform(key) for key in self._uniform_keys()]

    def _empty_cache(self, num_pages: int, dtype: torch.dtype) -> torch.Tensor:
        """[num_pages, page_size, num_kv_heads, head_dim] of NaN: unused slots may hold anything."""
        case, heads = self.case, self.case.heads
        nan = torch.full((1,), math.nan, device=self.device).to(dtype).view(torch.uint8)
        if case.layout == "HND":
            shape = (num_pages, heads.num_kv_heads, case.page_size, heads.head_dim)
        else:
            shape = (num_pages, case.page_size, heads.num_kv_heads, heads.head_dim)
        words = nan.repeat(math.prod(shape)).view(dtype).view(shape)
        return words.transpose(1, 2) if case.layout == "HND" else words

    def _fill(self, cache: torch.Tensor, request: int, values: torch.Tensor) -> None:
        """Writes a request's tokens into its pages, bytes as they are."""
        size = self.case.page_size
        raw, source = cache.view(torch.uint8), values.view(torch.uint8)
        pages = self.page_table[request].to(torch.int64)
        whole = values.shape[0] // size
        raw[pages[:whole]] = source[: whole * size].view(whole, size, *source.shape[1:])
        if rest := values.shape[0] - whole * size:
            raw[int(pages[whole]), :rest] = source[whole * size :]

    def _uniform_keys(self) -> list[tuple[int, int]]:
        pairs = zip(self.case.batch.kv_lens, self.case.batch.rows, strict=True)
        return sorted({pair for pair in pairs if pair[1]})

    def _gather(self, table: torch.Tensor, kv_len: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of the requests in `table`: [B, kv_len, num_kv_heads, head_dim], q's dtype."""
        flat = table.reshape(-1)
        gathered = []
        for cache, cache_scale in ((self.k_cache, self.k_scale), (self.v_cache, self.v_scale)):
            # By bytes: indexing of float8 tensors is not available everywhere.
            pages = cache.view(torch.uint8)[flat].view(cache.dtype)
            tokens = pages.reshape(table.shape[0], -1, *cache.shape[2:])[:, :kv_len]
            if cache_scale is not None:
                tokens = tokens.to(self.q.dtype) * cache_scale.to(self.q.dtype)
            gathered.append(tokens)
        return gathered[0], gathered[1]

    def _table_of(self, requests: list[int], kv_len: int) -> torch.Tensor:
        return self.page_table[requests, : -(-kv_len // self.case.page_size)].to(torch.int64)

    def _make_uniform(self, key: tuple[int, int]) -> _Uniform:
        kv_len, rows = key
        case, batch = self.case, self.case.batch
        pairs = list(zip(batch.kv_lens, batch.rows, strict=True))
        requests = [index for index, pair in enumerate(pairs) if pair == key]
        starts = batch.cu_seqlens_q()
        q = torch.stack([self.q[starts[i] : starts[i] + rows].transpose(0, 1) for i in requests])
        k, v = self._gather(self._table_of(requests, kv_len), kv_len)
        first = 0 if case.window is None else max(0, kv_len - rows - case.window + 1)
        k, v = (x[:, first:].transpose(1, 2).contiguous() for x in (k, v))
        plain = case.window is None or case.window >= kv_len
        causal_flag = plain and rows == kv_len and rows > 1
        mask = None
        if rows > 1 and not causal_flag:
            position = torch.arange(kv_len - rows, kv_len, device=self.device)[:, None]
            column = torch.arange(first, kv_len, device=self.device)[None, :]
            mask = column <= position
            if case.window is not None:
                mask &= column > position - case.window
        return _Uniform(requests, kv_len, rows, q.contiguous(), k, v, mask, causal_flag, first)

    def ours(self) -> torch.Tensor:
        """paged_attention over the pages."""
        out = hpcattn.paged_attention(
            self.q,
            self.k_cache,
            self.v_cache,
            page_table=self.page_table,
            cu_seqlens_q=self.cu_seqlens_q,
            kv_lens=self.kv_lens,
            scale=self.scale,
            window=self.case.window,
            k_scale=self.k_scale,
            v_scale=self.v_scale,
            out=self.out,
            plan=self.plan,
        )
        assert isinstance(out, torch.Tensor)  # return_lse was not asked for
        return out

    def _sdpa(self, part: _Uniform, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(
            part.q,
            k,
            v,
            attn_mask=part.mask,
            is_causal=part.causal_flag,
            scale=self.scale,
            enable_gqa=k.shape[1] != part.q.shape[1],
        )

    def sdpa_gqa(self) -> list[torch.Tensor]:
        """SDPA over contiguous K and V."""
        return [self._sdpa(part, part.k, part.v) for part in self._uniform]

    def sdpa_gather(self) -> list[torch.Tensor]:
        """Gathers the pages, then SDPA: what a paged cache costs without a paged kernel."""
        results = []
        for part, table in zip(self._uniform, self._tables, strict=True):
            k, v = self._gather(table, part.kv_len)
            k, v = (x[:, part.first :].transpose(1, 2) for x in (k, v))
            results.append(self._sdpa(part, k, v))
        return results

    def sdpa_packed(self) -> list[torch.Tensor]:
        """SDPA with the query heads of a group as the rows of one head: K is read once a group."""
        heads, results = self.case.heads, []
        for part in self._uniform:
            shape = (len(part.requests), heads.num_kv_heads, heads.group, heads.head_dim)
            results.append(
                torch.nn.functional.scaled_dot_product_attention(
                    part.q.view(shape), part.k, part.v, scale=self.scale
                )
            )
        return results

    def contenders(self) -> dict[str, Callable[[], object]]:
        """What to time, by name; what is left out is named in `skipped` with its reason."""
        self._tables = [self._table_of(part.requests, part.kv_len) for part in self._uniform]
        calls: dict[str, Callable[[], object]] = {OURS: self.ours, SDPA_GQA: self.sdpa_gqa}
        if self.case.heads.group > 1:
            if self.case.expanded_bytes > 0.5 * machine.memory_bytes()[1]:
                self.skipped[SDPA_EXPANDED] = (
                    f"its copies take {self.case.expanded_bytes / 2**30:.1f} GiB, over half of the "
                    "available memory"
                )
            else:
                group = self.case.heads.group
                copies = [
                    (part, part.k.repeat_interleave(group, 1), part.v.repeat_interleave(group, 1))
                    for part in self._uniform
                ]
                calls[SDPA_EXPANDED] = lambda: [self._sdpa(part, k, v) for part, k, v in copies]
        calls[SDPA_GATHER] = self.sdpa_gather
        if self.case.kind == "decode" and self.case.heads.group > 1:
            calls[SDPA_PACKED] = self.sdpa_packed
        return calls

    def check(self) -> CheckResult:
        """Holds our answer against float64 attention over what the pages hold.

        Raises:
            RuntimeError: An element is off by more than its dtype explains.
        """
        return check_rows(self, self.ours())

    def request(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One request in float64 as stored: q [rows, Hq, D], K and V [kv_len, Hkv, D]."""
        starts = self.case.batch.cu_seqlens_q()
        kv_len = self.case.batch.kv_lens[index]
        flat = self._table_of([index], kv_len).reshape(-1)
        values = []
        for cache, cache_scale in ((self.k_cache, self.k_scale), (self.v_cache, self.v_scale)):
            pages = cache.view(torch.uint8)[flat].view(cache.dtype)
            tokens = pages.reshape(-1, *cache.shape[2:])[:kv_len].to(torch.float64)
            values.append(tokens if cache_scale is None else tokens * cache_scale.double())
        return self.q[starts[index] : starts[index + 1]].double(), values[0], values[1]
