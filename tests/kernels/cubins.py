# SPDX-License-Identifier: Apache-2.0
"""Kernels compiled without a GPU, and what their machine code says."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def find_tool() -> Path | None:
    """The program hpcattn_variants of a build of the C++ tests."""
    named = os.environ.get("HPCATTN_VARIANTS")
    builds = ("release/src", "gpu/src", "gpu")
    paths = [named] if named else [ROOT / "build" / build / "hpcattn_variants" for build in builds]
    candidates = [Path(path) for path in paths]
    return next((path for path in candidates if path.is_file()), None)


def _package_folder(name: str) -> Path | None:
    """Where an installed package lies; it is not imported."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def find_nvrtc() -> str | None:
    """The libnvrtc that torch's wheel brings, or HPCATTN_NVRTC."""
    if named := os.environ.get("HPCATTN_NVRTC"):
        return named
    folder = _package_folder("nvidia")
    found = sorted(folder.glob("*/lib/libnvrtc.so.*")) if folder else []
    return next((str(path) for path in found if "builtins" not in path.name), None)


def find_cuobjdump() -> Path | None:
    """The disassembler that triton brings (it calls nvdisasm, which lies beside it)."""
    folder = _package_folder("triton")
    path = folder / "backends/nvidia/bin/cuobjdump" if folder else None
    return path if path is not None and path.is_file() else None


@dataclass
class Cubin:
    """One compiled variant."""

    family: str
    name: str
    arch: str
    cpu_seconds: float = 0.0
    file: str = ""
    error: str = ""
    cuobjdump: Path | None = field(default=None, repr=False)

    def _dump(self, option: str) -> str:
        assert self.cuobjdump is not None
        env = {**os.environ, "PATH": f"{self.cuobjdump.parent}:{os.environ.get('PATH', '')}"}
        command = [str(self.cuobjdump), option, self.file]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    @cached_property
    def usage(self) -> dict[str, int]:
        """Registers, STACK and LOCAL bytes of a thread, as the driver will see them."""
        return {
            key: int(value) for key, value in re.findall(r"(\w+):(\d+)", self._dump("-res-usage"))
        }

    @cached_property
    def instructions(self) -> Counter[str]:
        """Opcodes with their modifiers ("HMMA.16816.F32.BF16"), and how many there are of each."""
        code = self._dump("-sass")
        pattern = r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)"
        return Counter(re.findall(pattern, code))

    def count(self, opcode: str) -> int:
        """Instructions of this kind, whatever their modifiers."""
        all_of = self.instructions.items()
        return sum(n for i, n in all_of if i == opcode or i.startswith(opcode + "."))

    def has(self, opcode: str) -> bool:
        """Whether there is one of this kind."""
        return self.count(opcode) > 0


def compile_variants(
    tool: Path, nvrtc: str, arch: str, folder: Path, options: list[str], device_checks: bool = False
) -> list[Cubin]:
    """All chosen variants for `arch`, each by libnvrtc, none from a cache."""
    folder.mkdir(exist_ok=True)
    command = [str(tool), "--arch", arch, "--output", str(folder)]
    command += ["--jobs", str(len(os.sched_getaffinity(0))), *options]
    env = {**os.environ, "HPCATTN_NVRTC": nvrtc, "HPCATTN_DEVICE_CHECKS": str(int(device_checks))}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    known = {"family", "name", "cpu_seconds", "file", "error"}
    cubins = []
    for line in done.stdout.splitlines():
        values = {key: value for key, value in json.loads(line).items() if key in known}
        cubins.append(Cubin(arch=arch, cuobjdump=find_cuobjdump(), **values))
    return cubins
