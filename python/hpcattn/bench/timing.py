# SPDX-License-Identifier: Apache-2.0
"""Timing contenders in turns.

On a machine that other work shares, speed drifts by tens of percent in seconds. So contenders are
timed A B C, B C A, C A B, ...: a drift meets all of them alike.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Timing:
    """The times of one contender in seconds, in the order in which they were taken."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle time."""
        return statistics.median(self.seconds)

    @property
    def best(self) -> float:
        """The least time."""
        return min(self.seconds)

    @property
    def spread(self) -> float:
        """The middle half's width over the median: 0.1 says that half the times lie within 10 %."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.median

    def to_dict(self) -> dict[str, float | int]:
        """For a JSON report."""
        return {
            "median_s": self.median,
            "min_s": self.best,
            "max_s": max(self.seconds),
            "spread": self.spread,
            "rounds": len(self.seconds),
        }


@dataclass(frozen=True)
class Effort:
    """How long to measure a case: rounds until `seconds` are spent, within the two limits."""

    seconds: float = 6.0
    min_rounds: int = 7
    max_rounds: int = 60

    def __post_init__(self) -> None:
        """Checks the limits."""
        if not math.isfinite(self.seconds) or self.seconds <= 0:
            raise ValueError(f"seconds is {self.seconds}, expected a number above 0")
        if not 1 <= self.min_rounds <= self.max_rounds:
            raise ValueError(
                f"rounds from {self.min_rounds} to {self.max_rounds}: expected 1 <= first <= last"
            )


@dataclass
class Rotation:
    """The order of contenders in each round: every one comes first in turn."""

    names: list[str]
    _start: int = field(default=0)

    def next_round(self) -> list[str]:
        """The names in this round's order."""
        order = self.names[self._start :] + self.names[: self._start]
        self._start = (self._start + 1) % len(self.names)
        return order


# Makes a call and tells its seconds.
Timer = Callable[[Callable[[], object]], float]


def host_seconds(call: Callable[[], object]) -> float:
    """The time of a call by the host's clock."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(
    contenders: Mapping[str, Callable[[], object]],
    effort: Effort,
    *,
    timer: Timer = host_seconds,
    before_each: Callable[[], object] | None = None,
    progress: Callable[[float], None] | None = None,
) -> dict[str, Timing]:
    """Times every contender, in turns.

    Args:
        contenders: What to call, by name.
        effort: How many rounds.
        timer: Makes a call and tells its seconds.
        before_each: Called before every timed call, outside its time; empties the caches.
        progress: Called with the share done, 0 to 1.

    Returns:
        The times by name, in the order of `contenders`.

    Raises:
        ValueError: There is no contender.
    """
    if not contenders:
        raise ValueError("measure: no contender given")
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for call in contenders.values():  # first calls allocate, start threads and choose kernels
        call()
    rotation = Rotation(list(contenders))
    began = time.perf_counter()
    for done in range(effort.max_rounds):
        for name in rotation.next_round():
            if before_each is not None:
                before_each()
            times[name].append(timer(contenders[name]))
        spent = time.perf_counter() - began
        share = max((done + 1) / effort.max_rounds, spent / effort.seconds)
        share = min(share, (done + 1) / effort.min_rounds)
        if progress is not None:
            progress(min(1.0, share))
        if done + 1 >= effort.min_rounds and spent >= effort.seconds:
            break
    return {name: Timing(tuple(values)) for name, values in times.items()}
