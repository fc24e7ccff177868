# SPDX-License-Identifier: Apache-2.0
"""Puts faults into kernels, one at a time, and sees that the GPU tests find each.

The library reads kernels from HPCATTN_KERNEL_DIR before those that it carries: nothing is built.
hpcattn_variants, beside the tests, writes down those that they carry.

    python3 tools/break_kernels.py --tests build/gpu/src/hpcattn_gpu_tests [--filter TEXT]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernel_faults import FAULTS, Fault

SKIPPED = 77
LONGEST_SECONDS = 240


def verdict(fault: Fault, tests: Path, sources: Path, threads: int) -> str:
    """Empty where the tests found the fault, else what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "kernels_of_this_run", fault.included_name)
        target.parent.mkdir(parents=True)
        target.write_text(fault.mutated(sources / fault.included_name), encoding="utf-8")
        cache = Path(folder, "cache")
        cache.mkdir(mode=0o700)
        env = {
            **os.environ,
            "HPCATTN_KERNEL_DIR": str(Path(folder, "kernels_of_this_run")),
            "HPCATTN_CACHE_DIR": str(cache),
            "HPCATTN_TEST_THREADS": str(threads),
            "HPCATTN_KERNELS": fault.kernels,
        }
        command = [str(tests), f"--gtest_filter={fault.tests}", "--gtest_brief=1"]
        try:
            done = subprocess.run(
                command,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=LONGEST_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return ""  # a kernel that hangs is found
    if done.returncode == SKIPPED:
        return "the tests were skipped"
    if "does not compile" in done.stdout:
        return "the fault does not compile:\n" + done.stdout[:2000]
    return "the tests pass" if done.returncode == 0 else ""


def main() -> int:
    """Runs the faults of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tests", type=Path, required=True, help="the binary hpcattn_gpu_tests")
    parser.add_argument("--jobs", type=int, default=4, help="faults at once")
    parser.add_argument("--filter", default="", help="part of the names of those to run")
    options = parser.parse_args()
    faults = [fault for fault in FAULTS if options.filter in fault.name]
    threads = max(1, len(os.sched_getaffinity(0)) // options.jobs)

    missed = 0
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        program = options.tests.resolve().with_name("hpcattn_variants")
        subprocess.run([str(program), "--sources", folder], check=True)
        sources = Path(folder)
        verdicts = pool.map(lambda fault: verdict(fault, options.tests, sources, threads), faults)
        for fault, wrong in zip(faults, verdicts, strict=True):
            print(f"{'found' if not wrong else 'MISSED':7} {fault.name}", flush=True)
            if wrong:
                missed += 1
                print(f"        {wrong}", flush=True)
    seconds = time.monotonic() - begin
    print(f"{len(faults) - missed} of {len(faults)} faults found, {seconds:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
