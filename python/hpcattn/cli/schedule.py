# SPDX-License-Identifier: Apache-2.0
"""Who takes which task of a plan: threads and ctas alike take the next one once they are free."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcattn._introspect import Task


def schedule(tasks: Sequence[Task], num_workers: int) -> tuple[list[list[Task]], list[int]]:
    """Tasks by worker, and its cost, when each worker takes the next task once it is free."""
    taken: list[list[Task]] = [[] for _ in range(num_workers)]
    free = [(0, worker) for worker in range(num_workers)]
    for task in tasks:
        cost, worker = heapq.heappop(free)
        taken[worker].append(task)
        heapq.heappush(free, (cost + task.cost, worker))
    return taken, [sum(task.cost for task in mine) for mine in taken]
