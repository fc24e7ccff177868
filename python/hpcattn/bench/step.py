# SPDX-License-Identifier: Apache-2.0
"""What a step does besides attention and the fused prologue: the KV write alone, and the plan."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable

import torch

import hpcattn
from hpcattn import _introspect
from hpcattn.bench.cases import DTYPES, PlanCase, StoreCase
from hpcattn.bench.check import CheckResult

OURS = "hpcattn"
INDEX_COPY = "torch, index_copy_"

STORE_NOTES = {
    OURS: "store_kv: K and V of new tokens into pages, one launch",
    INDEX_COPY: "index_copy_ of K, then of V, into the same pages",
}
PLAN_NOTES = {OURS: "plan_attention into a tensor that is there; once a step, for all its layers"}

_REPORT = "Nothing was timed. Please report it with the command that showed it."


class StoreBench:
    """The tensors of one case of store_kv, what to time on them, and the check of our answer."""

    def __init__(self, case: StoreCase, seed: int = 0, device: torch.device | None = None) -> None:
        """Draws K and V, and slots in any order, in a cache twice as large.

        Args:
            case: The shape.
            seed: Of all random values.
            device: Where the tensors lie; None: the CPU.
        """
        self.case = case
        self.skipped: dict[str, str] = {}
        device = device or torch.device("cpu")
        generator = torch.Generator(device).manual_seed(seed)
        heads, size = case.heads, case.page_size
        dtype: torch.dtype = getattr(torch, DTYPES[case.dtype])
        shape = (2, case.num_tokens, heads.num_kv_heads, heads.head_dim)
        values = torch.randn(shape, generator=generator, device=device).to(dtype)
        self.k, self.v = values.unbind()
        pages = -(-2 * case.num_tokens // size)
        cache = (pages, size, heads.num_kv_heads, heads.head_dim)
        self.k_cache = torch.zeros(cache, dtype=dtype, device=device)
        self.v_cache = torch.zeros(cache, dtype=dtype, device=device)
        order = torch.randperm(pages * size, generator=generator, device=device)
        self.slots = order[: case.num_tokens].contiguous()

    def ours(self) -> None:
        """One call; K and V land in the pages."""
        hpcattn.store_kv(self.k, self.v, self.k_cache, self.v_cache, self.slots)

    def index_copy(self) -> None:
        """The same in torch."""
        self.k_cache.flatten(0, 1).index_copy_(0, self.slots, self.k)
        self.v_cache.flatten(0, 1).index_copy_(0, self.slots, self.v)

    def contenders(self) -> dict[str, Callable[[], object]]:
        """What to time, by name."""
        return {OURS: self.ours, INDEX_COPY: self.index_copy}

    def check(self) -> CheckResult:
        """Holds every bit of the pages against the values given.

        Raises:
            RuntimeError: A slot holds anything else, or one that was not named was written.
        """
        self.ours()
        for name, given, cache in (("K", self.k, self.k_cache), ("V", self.v, self.v_cache)):
            want = torch.zeros_like(cache).flatten(0, 1)
            want[self.slots] = given
            if not torch.equal(cache.flatten(0, 1), want):
                raise RuntimeError(
                    f"{self.case.name}: the cache differs from the {name} given. {_REPORT}"
                )
        return CheckResult(self.case.num_tokens, self.case.num_tokens, 0.0, 0.0)


class PlanBench:
    """The lengths of one batch, the plan of them to time, and the check that it covers them."""

    def __init__(self, case: PlanCase, seed: int = 0, device: torch.device | None = None) -> None:
        """Puts the lengths there, and makes room for the plan.

        Args:
            case: The batch and its heads.
            seed: Unused: there is nothing random.
            device: Where the lengths lie; None: the CPU.
        """
        del seed
        self.case = case
        self.skipped: dict[str, str] = {}
        attention = case.attention
        heads, batch = attention.heads, attention.batch
        self.group = hpcattn.AttentionGroup(
            num_q_heads=heads.num_q_heads,
            num_kv_heads=heads.num_kv_heads,
            head_dim=heads.head_dim,
            page_size=attention.page_size,
            q_dtype=getattr(torch, DTYPES[attention.dtype]),
            kv_dtype=getattr(torch, DTYPES[attention.kv_dtype]),
            window=attention.window,
        )
        self.cu_seqlens_q = torch.tensor(batch.cu_seqlens_q(), dtype=torch.int32, device=device)
        self.kv_lens = torch.tensor(batch.kv_lens, dtype=torch.int32, device=device)
        self.plan = hpcattn.plan_attention(self.group, self.cu_seqlens_q, self.kv_lens)

    def ours(self) -> None:
        """One plan."""
        hpcattn.plan_attention(self.group, self.cu_seqlens_q, self.kv_lens, plan=self.plan)

    def contenders(self) -> dict[str, Callable[[], object]]:
        """Nothing of torch's does this."""
        return {OURS: self.ours}

    def check(self) -> CheckResult:
        """Each row of each head meets every KV token that it may see, in one task.

        Raises:
            RuntimeError: A task is missing, or KV tokens are in two.
        """
        self.ours()
        batch, group = self.case.attention.batch, self.case.attention.heads.group
        pieces: dict[tuple[int, int, int, int], list[tuple[int, int]]] = defaultdict(list)
        for task in _introspect.plan_tasks(self.plan).tasks:
            for head in range(*task.kv_heads):
                pieces[task.request, head, task.rows[0], task.rows[1]].append(task.kv)
        rows: dict[tuple[int, int], int] = defaultdict(int)
        for (request, head, begin, end), ranges in pieces.items():
            rows[request, head] += end - begin
            ranges.sort()
            last_token = batch.kv_lens[request] - batch.rows[request] + (end - 1) // group
            whole = self.group.window is not None or ranges[0][0] == 0
            joined = all(a[1] == b[0] for a, b in itertools.pairwise(ranges))
            if not (whole and joined and ranges[-1][1] == last_token + 1):
                raise RuntimeError(
                    f"{self.case.name}: rows {begin} to {end} of request {request}, KV head "
                    f"{head}, have tasks over KV {ranges}, expected all up to {last_token + 1}. "
                    f"{_REPORT}"
                )
        for request, count in enumerate(batch.rows):
            for head in range(self.group.num_kv_heads):
                if rows[request, head] != count * group:
                    raise RuntimeError(
                        f"{self.case.name}: {rows[request, head]} rows of request {request}, KV "
                        f"head {head}, expected {count * group}. {_REPORT}"
                    )
        return CheckResult(batch.num_tokens, batch.num_tokens, 0.0, 0.0)
