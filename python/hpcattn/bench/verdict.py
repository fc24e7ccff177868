# SPDX-License-Identifier: Apache-2.0
"""The bars that hpcattn sets itself, and whether a run meets them."""

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
    gpu: str = ""  # in the name of the GPU that it is about; "": it is about CPUs


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

_LARGE = "bfloat16 64:8 heads of 128 page 64"

GPU_BARS = (
    Bar(f"decode 64x4K {_LARGE}", "bytes_per_s", 3.2e12, "of K and V", "H200"),
    Bar(f"prefill 1x8K {_LARGE}", "flops_per_s", 300e12, "of visible pairs", "H200"),
)

# What a figure is shown in: its unit, how many of it a unit is, and digits.
_UNITS = {
    "share_of_read": ("%", 100.0, ".0f"),
    "bytes_per_s": ("TB/s", 1e-12, ".2f"),
    "flops_per_s": ("TFLOP/s", 1e-12, ".0f"),
}


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
        if self.figure in _UNITS:
            unit, scale, digits = _UNITS[self.figure]
            value = f"{scale * self.value:{digits}} {unit}"
            bar = f"{scale * self.at_least:g} {unit}"
        else:
            value, bar = f"{self.value:.2f}", f"{self.at_least:g}"
        word = "met" if self.met else "not met"
        return f"{word:8} {self.case}: {value} {self.text} (bar {bar})"

    def to_dict(self) -> dict[str, object]:
        """For a JSON report."""
        return asdict(self)


def judge(cases: Iterable[Mapping[str, Any]], gpu: str = "") -> list[Verdict]:
    """The verdict of every bar whose case was measured; a bar without its case is left out.

    Args:
        cases: Case results of a report.
        gpu: The name of the GPU that they were measured on; "": a CPU.
    """
    by_name = {case["name"]: case for case in cases}
    verdicts = []
    for bar in (bar for bar in GPU_BARS if bar.gpu in gpu) if gpu else BARS:
        value = by_name.get(bar.case, {}).get(bar.figure)
        if value is not None:
            met = value >= bar.at_least
            verdicts.append(Verdict(bar.case, bar.figure, bar.text, value, bar.at_least, met))
    return verdicts
