# SPDX-License-Identifier: Apache-2.0
"""Runs cases on a GPU and makes the report, of the same form as the CPU's."""

from __future__ import annotations

import contextlib
import datetime
import gc
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hpcattn import _library
from hpcattn.bench import gpu_attention, machine, rope, runner, step
from hpcattn.bench.attention import OURS
from hpcattn.bench.cases import AttentionCase, Case, PlanCase, RopeCase, StoreCase
from hpcattn.bench.ceilings import CacheFlusher, ReadBandwidth, gemm_rates
from hpcattn.bench.layers import Layers, layers_for, timer_of
from hpcattn.bench.timing import Timing, measure
from hpcattn.bench.verdict import judge

_GEMM_SIZE = {"cuda": 8192, "cpu": 256}
# Of the free memory, what a case's tensors may take: SDPA and the check need some besides.
_MEMORY_SHARE = 0.6
# A plan reads lengths alone; so many in a row hide the cost of launching a graph.
_PLANS = 32

_Bench = gpu_attention.GpuAttentionBench | rope.RopeBench | step.StoreBench | step.PlanBench


def describe(device: torch.device) -> dict[str, Any]:
    """The GPU, its driver and its compiler, as a report records them; empty for the CPU."""
    if device.type != "cuda":
        return {}
    found = torch.cuda.get_device_properties(device)
    status = json.loads(_library.load().cuda_status(True))
    arch = next(
        (d.get("arch", "") for d in status["driver"]["devices"] if d["index"] == device.index), ""
    )
    return {
        "name": found.name,
        "arch": arch,
        "multiprocessors": found.multi_processor_count,
        "memory_bytes": found.total_memory,
        "l2_bytes": found.L2_cache_size,
        "driver": machine.nvidia_driver(),
        "driver_cuda": status["driver"]["cuda_version"],
        "nvrtc": status["nvrtc"]["version"],
        "torch_cuda": torch.version.cuda,
    }


def _free_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return machine.memory_bytes()[1]
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(device)[0])


def _layer_bytes(case: Case) -> tuple[int, int]:
    """What a call of a case reads and writes, and what its tensors take."""
    if isinstance(case, AttentionCase):
        return case.kv_bytes + 2 * case.q_bytes, case.memory_bytes + 4 * case.q_bytes
    if isinstance(case, PlanCase):
        return 0, 1 << 20
    return case.bytes_moved, 8 * case.bytes_moved


def _make_bench(case: Case, seed: int, device: torch.device) -> _Bench:
    if isinstance(case, AttentionCase):
        return gpu_attention.GpuAttentionBench(case, seed, device)
    if isinstance(case, RopeCase):
        return rope.RopeBench(case, seed, device)
    if isinstance(case, StoreCase):
        return step.StoreBench(case, seed, device)
    return step.PlanBench(case, seed, device)


class _GpuRunner:
    def __init__(
        self, settings: runner.Settings, progress: runner.Progress, device: torch.device
    ) -> None:
        self.settings = settings
        self.progress = progress
        self.device = device
        self.gpu = describe(device)
        self.l2_bytes = self.gpu.get("l2_bytes", 0)
        self.timer = timer_of(device)

    def ceilings(self) -> dict[str, Any]:
        effort = self.settings.effort
        read = ReadBandwidth(self.settings.read_bytes, self.device)
        forms = read.calibrate(effort, self.timer)
        self.read_rate = read.best_rate
        size = _GEMM_SIZE[self.device.type]
        self.gemm = gemm_rates(
            effort, size, dtypes=("bfloat16",), device=self.device, timer=self.timer
        )
        # Its time, before every replay, also lets the host run ahead of the GPU.
        self.flush = CacheFlusher(self.device, self.l2_bytes)
        return {
            "read_form": read.form,
            "read_forms_bytes_per_s": {n: read.num_bytes / t.best for n, t in forms.items()},
            "read_buffer_bytes": read.num_bytes,
            "read_bytes_per_s": read.best_rate,
            "gemm_flops_per_s": self.gemm,
        }

    def run(self, case: Case) -> dict[str, Any]:
        result: dict[str, Any] = {"name": case.name, "kind": case.kind, "params": case.params()}
        if isinstance(case, AttentionCase):
            result["sweep"] = case.sweep
        touched, taken = _layer_bytes(case)
        free = _free_bytes(self.device)
        layers = layers_for(touched, self.l2_bytes) if touched else _PLANS
        layers = min(layers, int(_MEMORY_SHARE * free / max(taken, 1)))
        if layers < 1:
            need, there = taken / 2**30, free / 2**30
            text = f"needs {need:.1f} GiB for one layer, {there:.1f} GiB are free"
            result["skipped"] = {"all": text}
            return result
        result["layers"] = layers
        seed = self.settings.seed
        benches = [_make_bench(case, seed + layer, self.device) for layer in range(layers)]
        result["check"] = benches[0].check().to_dict()
        replays, skipped = self._replays(benches)
        timings = measure(
            replays,
            self.settings.effort,
            timer=self.timer,
            before_each=self.flush,
            progress=self.progress.update,
        )
        own = {
            name: Timing(tuple(seconds / layers for seconds in timing.seconds))
            for name, timing in timings.items()
        }
        result["skipped"] = skipped
        self._finish(case, result, own)
        return result

    def _replays(
        self, benches: Sequence[_Bench]
    ) -> tuple[dict[str, Callable[[], object]], dict[str, str]]:
        """Every contender over all layers; one of torch's that can not answer is left out."""
        calls = [bench.contenders() for bench in benches]
        skipped = dict(benches[0].skipped)
        replays: dict[str, Callable[[], object]] = {}
        for name in calls[0]:
            try:
                replays[name] = Layers([mine[name] for mine in calls], self.device)
            except (RuntimeError, NotImplementedError) as error:
                if name == OURS:
                    raise
                skipped[name] = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return replays, skipped

    def _finish(self, case: Case, result: dict[str, Any], timings: dict[str, Timing]) -> None:
        """Rates and ratios of a measured case."""
        if isinstance(case, AttentionCase):
            num_bytes, flops = case.kv_bytes, case.flops
            result["kv_bytes"], result["flops"] = num_bytes, flops
        elif isinstance(case, PlanCase):
            num_bytes, flops = 0, 0
        else:
            num_bytes, flops = case.bytes_moved, 0
            result["bytes_moved"] = num_bytes
        rows = {
            name: runner.row(timing, num_bytes, flops, self.read_rate)
            for name, timing in timings.items()
        }
        for row in rows.values():
            if flops:
                row["share_of_gemm"] = row["flops_per_s"] / self.gemm["bfloat16"]
        result["contenders"] = rows
        ours = timings[OURS].median
        result["speedups"] = {n: t.median / ours for n, t in timings.items() if n != OURS}
        # What the bars are about.
        rates = ("bytes_per_s", "flops_per_s", "share_of_read", "share_of_gemm")
        result |= {key: rows[OURS][key] for key in rates if key in rows[OURS]}
        if gpu_attention.SDPA_FLASH in timings:
            result["speedup_over_sdpa"] = result["speedups"][gpu_attention.SDPA_FLASH]
        if case.kind == "decode":
            result["read_floor_s"] = num_bytes / self.read_rate


def run_suite(
    cases: Sequence[Case],
    settings: runner.Settings,
    device: torch.device,
    progress: runner.Progress | None = None,
) -> dict[str, Any]:
    """Measures all cases on a GPU, in this process.

    Args:
        cases: What to measure.
        settings: Effort, seed, bytes of the buffer that is read.
        device: The GPU. With the CPU, which tests take, layers are called one by one.
        progress: Told of every case; None: silent.

    Returns:
        The report, as runner.run_suite makes it; times are a layer's.

    Raises:
        RuntimeError: An answer of ours was wrong; nothing of that case was timed.
        ValueError: There is no case.
    """
    if not cases:
        raise ValueError("bench: no case to measure")
    progress = progress or runner.Silent()
    on_device = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    with on_device, torch.inference_mode():
        count = len(cases) + 1
        progress.start("ceilings of this GPU", 0, count)
        work = _GpuRunner(settings, progress, device)
        ceilings = work.ceilings()
        results = []
        for index, case in enumerate(cases):
            progress.start(case.name, index + 1, count)
            results.append(work.run(case))
            gc.collect()  # the tensors of a case go before those of the next come
    effort = settings.effort
    verdicts = judge(results, work.gpu.get("name", ""))
    return {
        "schema": runner.SCHEMA,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": str(device),
        "machine": machine.describe() | {"gpu": work.gpu},
        "versions": machine.versions() | {"nvrtc": work.gpu.get("nvrtc")},
        "settings": {
            "threads": torch.get_num_threads(),
            "seconds_a_case": effort.seconds,
            "min_rounds": effort.min_rounds,
            "max_rounds": effort.max_rounds,
            "seed": settings.seed,
            "caches": "layers have tensors of their own, together larger than L2; L2 is read over "
            "before every replay",
            "order": "replays in turns, a different contender first in every round",
        },
        "ceilings": ceilings,
        "notes": {
            "attention": gpu_attention.NOTES,
            "rope_norm_store_kv": rope.NOTES,
            "store_kv": step.STORE_NOTES,
            "plan": step.PLAN_NOTES,
        },
        "cases": results,
        "verdicts": [verdict.to_dict() | {"line": verdict.line} for verdict in verdicts],
    }
