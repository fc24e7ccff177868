# SPDX-License-Identifier: Apache-2.0
"""The tests that need a GPU, on an emulated one (docs/emulator.md).

By default a share of them, and a few of the faults that are put into kernels on purpose;
HPCATTN_LONG_TESTS=1 takes all that a CPU has the memory for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cubins import ROOT, find_tool

sys.path.insert(0, str(ROOT / "tools"))
import break_kernels
from kernel_faults import FAULTS, Fault

LONG = "HPCATTN_LONG_TESTS" in os.environ
LONGEST_SECONDS = 3600 if LONG else 600
# 16 GB of pages, or a thousand times the same.
TOO_LARGE = "GpuLimits.*:*Thousand*"


@dataclass(frozen=True)
class Run:
    """A choice of tests, and variables of the environment."""

    name: str
    tests: str
    variables: dict[str, str] = field(default_factory=dict)


RUNS = (
    Run("a little of everything", "GpuQuick.*"),
    Run("fp8 by bit arithmetic, less shared memory", "GpuQuick.*", {"HPCATTN_EMULATED_ARCH": "80"}),
    Run("less shared memory still", "GpuQuick.*", {"HPCATTN_EMULATED_ARCH": "86"}),
    Run("many multiprocessors", "GpuQuick.Attention", {"HPCATTN_EMULATED_SMS": "132"}),
    Run("another order of threads", "GpuQuick.*", {"HPCATTN_EMULATED_SEED": "77"}),
    Run(
        "many rows for Hopper",
        "GpuQuick.Attention:GpuAttentionFaults.*:*LengthsAtTheEdges*:*EveryPageSizeAndLayout",
        {"HPCATTN_KERNELS": "prefill"},
    ),
    Run("every kind of batch", "GpuAttention.EveryKindOfBatch:*FixedSplitsMake*"),
    Run("no kernels of Hopper's own", "GpuQuick.Attention", {"HPCATTN_KERNELS": "generic"}),
    Run("checks", "GpuDeviceChecks.*:GpuRefusals.*", {"HPCATTN_DEVICE_CHECKS": "1"}),
    Run("graphs and plans", "GpuGraph.*:GpuPlans.NamedBatches"),
    Run("backend", "GpuBackend.*:-*EveryFeature*"),
)
LONG_RUNS = (
    Run("all", f"-{TOO_LARGE}"),
    Run("all for Hopper's many rows", f"-{TOO_LARGE}", {"HPCATTN_KERNELS": "prefill"}),
    Run("all by the generic kernel", f"-{TOO_LARGE}", {"HPCATTN_KERNELS": "generic"}),
    Run("all for sm_80", f"-{TOO_LARGE}", {"HPCATTN_EMULATED_ARCH": "80"}),
)
# One of each of the kernels, and of each kind of fault that only an order of threads shows.
FEW_FAULTS = 7


@dataclass(frozen=True)
class Emulator:
    """The programs of a build, and what they need to find the emulated libraries."""

    tests: Path
    variables: dict[str, str]


def find_emulator() -> Emulator | None:
    """Beside hpcattn_variants, where the C++ tests were built."""
    tool = find_tool()
    if tool is None:
        return None
    tests, folder = tool.with_name("hpcattn_gpu_tests"), tool.parents[1] / "emulator"
    if not tests.is_file() or not (folder / "libcuda.so.1").is_file():
        return None
    cache = folder / "cache"
    cache.mkdir(mode=0o700, exist_ok=True)
    variables = {
        "LD_LIBRARY_PATH": str(folder),
        "HPCATTN_NVRTC": str(folder / "libnvrtc.so.13"),
        "HPCATTN_CACHE_DIR": str(cache),
    }
    return Emulator(tests, variables)


@pytest.fixture(scope="module")
def emulator() -> Emulator:
    found = find_emulator()
    if found is None:
        pytest.skip("the emulator is not built: `make test-cpp` builds it")
    return found


def run_tests(emulator: Emulator, run: Run) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **emulator.variables, **run.variables}
    environment.setdefault("HPCATTN_TEST_THREADS", "1")
    return subprocess.run(
        [str(emulator.tests), f"--gtest_filter={run.tests}", "--gtest_brief=1"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=LONGEST_SECONDS,
        check=False,
    )


Outcomes = dict[str, Future[subprocess.CompletedProcess[str]]]


@pytest.fixture(scope="module")
def outcomes(emulator: Emulator) -> Iterator[Outcomes]:
    """All runs, as many at once as there are cores."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        runs = RUNS + LONG_RUNS if LONG else RUNS
        yield {run.name: pool.submit(run_tests, emulator, run) for run in runs}


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_tests_pass(outcomes: Outcomes, run: Run) -> None:
    done = outcomes[run.name].result()
    assert done.returncode == 0, done.stdout[-4000:]
    assert "emulated GPU" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("run", LONG_RUNS, ids=lambda run: run.name)
def test_all_tests_pass(outcomes: Outcomes, run: Run) -> None:
    test_tests_pass(outcomes, run)


def emulated(fault: Fault) -> bool:
    """Headers of instructions are the emulator's own."""
    return not fault.file.startswith(("kernels/ptx/", "kernels/std/"))


EMULATED_FAULTS = [fault for fault in FAULTS if emulated(fault)]


@pytest.fixture(scope="module")
def verdicts(
    emulator: Emulator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[str]]]:
    sources = tmp_path_factory.mktemp("sources")
    tool = emulator.tests.with_name("hpcattn_variants")
    subprocess.run([str(tool), "--sources", str(sources)], check=True)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in emulator.variables.items():
            patch.setenv(name, value)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            yield {
                fault.name: pool.submit(break_kernels.verdict, fault, emulator.tests, sources, 1)
                for fault in EMULATED_FAULTS
                if LONG or fault in EMULATED_FAULTS[:: len(EMULATED_FAULTS) // FEW_FAULTS]
            }


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            fault,
            id=fault.name,
            marks=() if i % (len(EMULATED_FAULTS) // FEW_FAULTS) == 0 else pytest.mark.long,
        )
        for i, fault in enumerate(EMULATED_FAULTS)
    ],
)
def test_a_fault_is_found(verdicts: dict[str, Future[str]], fault: Fault) -> None:
    assert verdicts[fault.name].result() == ""
