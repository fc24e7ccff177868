# SPDX-License-Identifier: Apache-2.0
"""Compiles the common kernels, to ship with the package (docs/torch.md lists them).

    python tools/make_cubins.py --library build/torch/hpcattn_torch.so --arch sm_90a --output DIR

Run by torch/CMakeLists.txt where HPCATTN_CUBINS is on. It needs torch and libnvrtc, which a CUDA
build of torch brings, and no GPU. Without libnvrtc nothing ships, and that is no failure: kernels
are then compiled where they are first needed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def compile_all(ops: Any, arch: str, folder: Path) -> tuple[int, int]:
    """Writes all cubins to a folder; returns how many and their bytes."""

    def one(variant: dict[str, Any]) -> int:
        answer = json.loads(ops.prepare_kernel(**variant, arch=arch, folder=str(folder)))
        return int(answer["bytes"])

    variants = json.loads(ops.shipped_kernels(arch))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        sizes = list(pool.map(one, variants))
    return len(sizes), sum(sizes)


def main() -> int:
    """Runs the tool."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, required=True, help="hpcattn_torch.so")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--output", type=Path, required=True, help="replaced as a whole")
    options = parser.parse_args()

    import torch

    registry: Any = torch.ops
    registry.load_library(str(options.library.absolute()))
    ops = registry.hpcattn
    options.output.parent.mkdir(parents=True, exist_ok=True)
    # What is not among them any more must not ship, so they are written to a folder of their own.
    made = Path(tempfile.mkdtemp(prefix=".cubins-", dir=options.output.absolute().parent))
    problem = json.loads(ops.cuda_status(False))["nvrtc"]["problem"]
    if problem:
        print(f"no kernels ship with this package: {problem}", file=sys.stderr)
    else:
        start = time.perf_counter()
        count, size = compile_all(ops, options.arch, made)
        seconds = time.perf_counter() - start
        print(f"{count} kernels for {options.arch}, {size / 1e6:.2f} MB, in {seconds:.0f} s")
    for file in made.iterdir():
        file.chmod(0o644)
    made.chmod(0o755)
    shutil.rmtree(options.output, ignore_errors=True)
    made.rename(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
