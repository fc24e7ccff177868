# SPDX-License-Identifier: Apache-2.0
"""Runs cases and makes the report: a plain dict, as `--json` prints it and `--output` keeps it."""

from __future__ import annotations

import datetime
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from hpcattn.bench import attention, machine, rope
from hpcattn.bench.cases import AttentionCase, Case, RopeCase
from hpcattn.bench.ceilings import CacheFlusher, ReadBandwidth, gemm_rates
from hpcattn.bench.timing import Effort, Timing, measure
from hpcattn.bench.verdict import judge

# Raised when a field of the report changes its meaning or goes; a new field does not raise it.
SCHEMA = 1

_READ = "read"


class Progress(Protocol):
    """Where a run says how far it is."""

    def start(self, name: str, index: int, count: int) -> None:
        """Case `index` of `count` begins."""

    def update(self, share: float) -> None:
        """The present case is done to this share."""


class Silent:
    """Progress that nobody watches."""

    def start(self, name: str, index: int, count: int) -> None:
        """Says nothing."""

    def update(self, share: float) -> None:
        """Says nothing."""


@dataclass(frozen=True)
class Settings:
    """How to run the cases."""

    effort: Effort = field(default_factory=Effort)
    num_threads: int = 0  # 0: as torch has them
    read_bytes: int = 1 << 30
    seed: int = 0


@contextmanager
def equal_threads(num_threads: int) -> Iterator[int]:
    """Sets the threads that torch's operators and ours share (ours run on torch's), then restores.

    Args:
        num_threads: How many; 0: as they are.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads or before)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def row(timing: Timing, num_bytes: int, flops: int, read_rate: float) -> dict[str, Any]:
    """One contender of a case: its times and the rates that they give, by the median."""
    found: dict[str, Any] = timing.to_dict()
    if num_bytes:
        found["bytes_per_s"] = num_bytes / timing.median
        found["share_of_read"] = found["bytes_per_s"] / read_rate
    if flops:
        found["flops_per_s"] = flops / timing.median
    return found


class _Runner:
    def __init__(self, settings: Settings, progress: Progress) -> None:
        self.settings = settings
        self.progress = progress
        self.flush = CacheFlusher()
        self.read = ReadBandwidth(settings.read_bytes)
        self.raw: list[tuple[Case, dict[str, Any], dict[str, Timing]]] = []

    def ceilings(self) -> dict[str, Any]:
        effort = self.settings.effort
        forms = self.read.calibrate(effort)
        self.gemm = gemm_rates(effort)
        rates = {name: self.read.num_bytes / timing.best for name, timing in forms.items()}
        return {
            "read_form": self.read.form,
            "read_forms_bytes_per_s": rates,
            "read_buffer_bytes": self.read.num_bytes,
            "gemm_flops_per_s": self.gemm,
        }

    def run(self, case: Case) -> None:
        result: dict[str, Any] = {"name": case.name, "kind": case.kind, "params": case.params()}
        if isinstance(case, AttentionCase):
            result["sweep"] = case.sweep
            available = machine.memory_bytes()[1]
            if case.memory_bytes > 0.7 * available:
                result["skipped"] = {
                    "all": f"needs {case.memory_bytes / 2**30:.1f} GiB, "
                    f"{available / 2**30:.1f} GiB are available"
                }
                self.raw.append((case, result, {}))
                return
            bench: attention.AttentionBench | rope.RopeBench
            bench = attention.AttentionBench(case, self.settings.seed)
        elif isinstance(case, RopeCase):
            bench = rope.RopeBench(case, self.settings.seed)
        else:
            raise NotImplementedError(f"{case.name} is measured on a GPU alone: --device cuda")
        result["check"] = bench.check().to_dict()
        contenders = bench.contenders()
        if case.kind == "decode":
            # In the same turns, so that the share of it is of the same moments.
            contenders[_READ] = self.read
        timings = measure(
            contenders,
            self.settings.effort,
            before_each=self.flush,
            progress=self.progress.update,
        )
        result["skipped"] = bench.skipped
        if _READ in timings:
            self.read.note(timings[_READ])
        self.raw.append((case, result, timings))

    def finish(self) -> list[dict[str, Any]]:
        """Rates of all cases, against the best read rate that any moment of the run showed."""
        rate = self.read.best_rate
        results = []
        for case, result, timings in self.raw:
            if not timings:
                results.append(result)
                continue
            if isinstance(case, AttentionCase):
                _finish_attention(case, result, timings, rate, self.read.num_bytes)
            elif isinstance(case, RopeCase):
                _finish_rope(case, result, timings, rate)
            results.append(result)
        return results


def _finish_attention(
    case: AttentionCase,
    result: dict[str, Any],
    timings: dict[str, Timing],
    rate: float,
    read_bytes: int,
) -> None:
    own = {name: timing for name, timing in timings.items() if name != _READ}
    result["kv_bytes"], result["flops"] = case.kv_bytes, case.flops
    result["contenders"] = {
        name: row(timing, case.kv_bytes, case.flops, rate) for name, timing in own.items()
    }
    ours = own[attention.OURS].median
    plain = {name: own[name].median for name in attention.SDPA_PLAIN if name in own}
    result["sdpa_form"] = min(plain, key=lambda name: plain[name])
    result["speedup_over_sdpa"] = plain[result["sdpa_form"]] / ours
    result["speedups"] = {name: own[name].median / ours for name in own if name != attention.OURS}
    if _READ in timings:
        result["read_floor_s"] = case.kv_bytes / rate
        result["read"] = row(timings[_READ], read_bytes, 0, rate)
        # Of the best moment of the run, which is what the bar is about, and of the same moments.
        result["share_of_read"] = case.kv_bytes / ours / rate
        result["share_of_read_in_turns"] = case.kv_bytes / ours / result["read"]["bytes_per_s"]


def _finish_rope(
    case: RopeCase, result: dict[str, Any], timings: dict[str, Timing], rate: float
) -> None:
    result["bytes_moved"] = case.bytes_moved
    result["contenders"] = {
        name: row(timing, case.bytes_moved, 0, rate) for name, timing in timings.items()
    }
    for found in result["contenders"].values():
        del found["share_of_read"]  # half of these bytes are writes
    ours = timings[rope.OURS].median
    result["speedups"] = {rope.UNFUSED: timings[rope.UNFUSED].median / ours}
    result["speedup_over_unfused"] = result["speedups"][rope.UNFUSED]


def run_suite(
    cases: Sequence[Case], settings: Settings, progress: Progress | None = None
) -> dict[str, Any]:
    """Measures all cases on the CPU, in this process.

    Args:
        cases: What to measure.
        settings: Threads, effort, seed.
        progress: Told of every case; None: silent.

    Returns:
        The report. All times are in seconds, rates in units a second.

    Raises:
        RuntimeError: An answer of ours was wrong; nothing of that case was timed.
        ValueError: There is no case.
    """
    if not cases:
        raise ValueError("bench: no case to measure")
    progress = progress or Silent()
    with equal_threads(settings.num_threads) as threads, torch.inference_mode():
        count = len(cases) + 1
        progress.start("ceilings of this machine", 0, count)
        runner = _Runner(settings, progress)
        ceilings = runner.ceilings()
        for index, case in enumerate(cases):
            progress.start(case.name, index + 1, count)
            runner.run(case)
            gc.collect()  # the tensors of a case go before those of the next come
        results = runner.finish()
    ceilings["read_bytes_per_s"] = runner.read.best_rate
    effort = settings.effort
    return {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": "cpu",
        "machine": machine.describe(),
        "versions": machine.versions(),
        "settings": {
            "threads": threads,
            "seconds_a_case": effort.seconds,
            "min_rounds": effort.min_rounds,
            "max_rounds": effort.max_rounds,
            "seed": settings.seed,
            "caches": "emptied before every timed call",
            "order": "contenders in turns, a different one first in every round",
        },
        "ceilings": ceilings,
        "notes": {"attention": attention.NOTES, "rope_norm_store_kv": rope.NOTES},
        "cases": results,
        "verdicts": [verdict.to_dict() | {"line": verdict.line} for verdict in judge(results)],
    }
