# SPDX-License-Identifier: Apache-2.0
"""What the native library says of itself: kernels and reasons, capabilities, tasks, counters."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch

from hpcattn import _library
from hpcattn._errors import run
from hpcattn.plan import wait_for


@dataclass(frozen=True)
class Explanation:
    """Which kernel answers a shape.

    Attributes:
        kernel: Its name, or "" where none answers.
        reason: Why that one.
        refusals: Every reason why none does; empty where one does.
    """

    kernel: str
    reason: str
    refusals: tuple[str, ...]


@dataclass(frozen=True)
class Task:
    """A share of a step's work: some rows of some KV heads of a request, over a range of its KV.

    Attributes:
        request: Index in the batch.
        kv_heads: First KV head and end; a head's group of query heads gives its rows.
        rows: Of each KV head, first and end; row = query token * group + head within the group.
        kv: First KV token and end.
        partial: Whether its result is combined with others.
        cost: What the plan balances by.
    """

    request: int
    kv_heads: tuple[int, int]
    rows: tuple[int, int]
    kv: tuple[int, int]
    partial: bool
    cost: int


@dataclass(frozen=True)
class PlanTasks:
    """The tasks of a plan.

    Attributes:
        tasks: In the order in which workers take them.
        kernels: Tasks of each kernel, by its name.
        partial_bytes: Memory of the partial results during a call.
        scratch_bytes_per_thread: Memory of each thread during a call.
    """

    tasks: tuple[Task, ...]
    kernels: dict[str, int]
    partial_bytes: int
    scratch_bytes_per_thread: int


@dataclass(frozen=True)
class PlanPreview:
    """The plan that a GPU would be given.

    Attributes:
        tasks: In the order in which ctas claim them.
        num_workers: Ctas that attention runs.
        numbers: num_partials, num_combines, narrow_tiles, plan_bytes and the like.
    """

    tasks: tuple[Task, ...]
    num_workers: int
    numbers: dict[str, int]


def explain(query_tokens: int, **request: Any) -> Explanation:
    """Asks the backend which kernel answers.

    Args:
        query_tokens: New query tokens of a request.
        **request: As the operator `torch.ops.hpcattn.explain` takes it: device, num_q_heads,
            num_kv_heads, head_dim, page_size, dtype, kv_cache_dtype, window, ...

    Returns:
        The kernel with its reason, or the refusals.

    Raises:
        ValueError: A word (device, layout, attention type) is unknown.
    """
    answer = json.loads(run(_library.load().explain, query_tokens, **request))
    return Explanation(answer["kernel"], answer["reason"], tuple(answer["refusals"]))


def capabilities() -> dict[str, Any]:
    """What the backend supports: dtypes, cache dtypes, head dims, page sizes, and what is built."""
    answer: dict[str, Any] = json.loads(_library.load().capabilities())
    return answer


def plan_tasks(plan: torch.Tensor) -> PlanTasks:
    """The tasks of a plan, and what they take.

    Raises:
        ValueError: The tensor holds no plan.
    """
    wait_for(plan)
    answer = json.loads(run(_library.load().plan_tasks, plan))
    tasks = tuple(
        Task(request, (head, head + heads), (row, row_end), (kv, kv_end), partial >= 0, cost)
        for request, head, heads, row, row_end, kv, kv_end, partial, cost in answer["tasks"]
    )
    return PlanTasks(
        tasks, answer["kernels"], answer["partial_bytes"], answer["scratch_bytes_per_thread"]
    )


def plan_preview(
    cu_seqlens_q: list[int],
    kv_lens: list[int],
    *,
    num_sms: int,
    capability: int = 90,
    fixed_split: int = 0,
    **group: Any,
) -> PlanPreview:
    """The plan of a GPU of so many multiprocessors, which need not be there.

    `capability` is 90 for 9.0: which kernel computes, and so what its tiles cost, follows from it.

    Raises:
        ValueError: The lengths are none of a batch, or no plan holds their tasks.
    """
    answer = json.loads(
        run(
            _library.load().plan_preview,
            cu_seqlens_q,
            kv_lens,
            num_sms=num_sms,
            capability=capability,
            fixed_split=fixed_split,
            **group,
        )
    )
    rows = answer.pop("tasks")
    tasks = tuple(
        Task(request, (head, head + heads), (row, row_end), (kv, kv_end), partial >= 0, cost)
        for request, head, heads, row, row_end, kv, kv_end, partial, cost in rows
    )
    return PlanPreview(tasks, answer.pop("num_workers"), answer)


def call_kernels(**call: Any) -> dict[str, Any]:
    """The kernels that an attention call launches on a GPU, which need not be there.

    Args:
        **call: As the operator `torch.ops.hpcattn.call_kernels` takes it: the fields of a group,
            softcap, alibi, fixed_split, rows (of a KV head that a request has on average),
            capability (90 for 9.0).

    Returns:
        `arch`, the name of the `attention` kernel, and `kernels`: each with `name`, `threads`,
        `shared_bytes` and `cubin` ("shipped", "cached" or "not compiled").
    """
    answer: dict[str, Any] = json.loads(run(_library.load().call_kernels, **call))
    return answer


def counters() -> dict[str, int]:
    """What ran since the start or the last reset: operators by name, kernels by path and ISA."""
    answer: dict[str, int] = json.loads(_library.load().counters())
    return answer


def reset_counters() -> None:
    """Sets all counters to 0."""
    _library.load().reset_counters()
