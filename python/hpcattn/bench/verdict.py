# SPDX-License-Identifier: Apache-2.0
"""The bars that hpcattn sets itself on a CPU, and whether a run meets them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Bar:
    """One bar: a figure of one case, and the least that it must be."""

    case: str
    figure: str  # a key of the case's result
    at_least: float
    text: str


_DECODE = "decode 16x2K"
_PREFILL = "prefill 1x2K"

BARS = (
    Bar(f"{_DECODE} float32", "speedup_over_sdpa", 2.0, "times as fast as SDPA"),
    Bar(f"{_DECODE} bfloat16", "speedup_over_sdpa", 4.0, "times as fast as SDPA"),
    Bar(f"{_DECODE} float32", "share_of_read", 0.6, "of the read bandwidth"),
    Bar(f"{_DECODE} bfloat16", "share_of_read", 0.6, "of the read bandwidth"),
    Bar(f"{_PREFILL} float32", "speedup_over_sdpa", 1.0, "times as fast as SDPA"),
    Bar(f"{_PREFILL} bfloat16", "speedup_over_sdpa", 1.0, "times as fast as SDPA"),
)


@dataclass(frozen=True)
class Verdict:
    """A bar with what was measured."""

    case: str
    figure: str
    text: str
    value: float
    at_least: float
    met: bool

    @property
    def line(self) -> str:
        """For a terminal: `met      decode 16x2K float32: 2.31 times as fast as SDPA (bar 2)`."""
        if self.figure == "share_of_read":
            value, bar = f"{100 * self.value:.0f} %", f"{100 * self.at_least:.0f} %"
        else:
            value, bar = f"{self.value:.2f}", f"{self.at_least:g}"
        word = "met" if self.met else "not met"
        return f"{word:8} {self.case}: {value} {self.text} (bar {bar})"

    def to_dict(self) -> dict[str, object]:
        """For a JSON report."""
        return asdict(self)


def judge(cases: Iterable[Mapping[str, Any]]) -> list[Verdict]:
    """The verdict of every bar whose case was measured; a bar without its case is left out.

    Args:
        cases: Case results of a report.
    """
    by_name = {case["name"]: case for case in cases}
    verdicts = []
    for bar in BARS:
        value = by_name.get(bar.case, {}).get(bar.figure)
        if value is not None:
            met = value >= bar.at_least
            verdicts.append(Verdict(bar.case, bar.figure, bar.text, value, bar.at_least, met))
    return verdicts
