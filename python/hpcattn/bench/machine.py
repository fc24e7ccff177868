# SPDX-License-Identifier: Apache-2.0
"""Facts of this machine: CPU, instruction sets, cores, memory, versions, GPU driver.

Everything is read from files and package metadata. Nothing here starts a CUDA context, loads the
CUDA driver, or imports torch.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

# Instruction sets that a kernel could choose by, in the order in which they are shown. The names
# are those of /proc/cpuinfo, on x86 and on Arm.
_ISA_FLAGS = (
    "sse4_2",
    "avx",
    "f16c",
    "fma",
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "asimd",
    "asimdhp",
    "sve",
    "sve2",
    "bf16",
    "i8mm",
)


def _read(path: str | Path) -> str:
    """The text of a file, or "" where it can not be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _cpuinfo_field(text: str, *names: str) -> str:
    """The first value of any of `names` in the text of /proc/cpuinfo."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in names:
            return value.strip()
    return ""


def cpu_model(cpuinfo: str | None = None) -> str:
    """The CPU's name, with family and model numbers, which tell more on a virtual machine."""
    text = _read("/proc/cpuinfo") if cpuinfo is None else cpuinfo
    name = _cpuinfo_field(text, "model name", "Processor", "Model", "CPU implementer")
    family = _cpuinfo_field(text, "cpu family")
    model = _cpuinfo_field(text, "model")
    numbers = f" (family {family}, model {model})" if family and model else ""
    return (name or platform.processor() or platform.machine()) + numbers


def isa(cpuinfo: str | None = None) -> list[str]:
    """The instruction sets of this CPU that matter to attention kernels."""
    text = _read("/proc/cpuinfo") if cpuinfo is None else cpuinfo
    flags = set(_cpuinfo_field(text, "flags", "Features").split())
    return [name for name in _ISA_FLAGS if name in flags]


def cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> tuple[int, str]:
    """The threads that hpcattn uses on the CPU, and why: as Execution{} resolves them in C++."""
    text = os.environ.get("HPCATTN_NUM_THREADS", "")
    if text.strip().isdigit() and int(text) > 0:
        return int(text), "HPCATTN_NUM_THREADS"
    return cores(), "the cores of this process"


def cpu_quota() -> float | None:
    """Cores' worth of time that the control group grants, or None without a limit.

    A quota below the number of cores makes threads wait in turns: worth knowing beside a timing.
    """
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").strip().partition(" ")
    if quota and quota != "max" and period:
        return int(quota) / int(period)
    quota = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").strip()
    period = _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us").strip()
    if quota and period and int(quota) > 0:
        return int(quota) / int(period)
    return None


def memory_bytes() -> tuple[int, int]:
    """Total and available memory."""
    fields = {}
    for line in _read("/proc/meminfo").splitlines():
        key, _, value = line.partition(":")
        number = value.split()
        if number and number[0].isdigit():
            fields[key] = int(number[0]) * 1024
    return fields.get("MemTotal", 0), fields.get("MemAvailable", 0)


def cache_bytes() -> dict[str, int]:
    """Bytes of each level of data cache that one core sees: {"L1d": ..., "L2": ..., ...}."""
    sizes: dict[str, int] = {}
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level = _read(index / "level").strip()
        kind = _read(index / "type").strip()
        size = _read(index / "size").strip()
        if kind == "Instruction" or not size:
            continue
        number = int(size[:-1]) * units[size[-1]] if size[-1] in units else int(size)
        sizes[f"L{level}" + ("d" if kind == "Data" else "")] = number
    return sizes


def package_version(name: str) -> str | None:
    """The version of an installed distribution, without importing it."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def version_tuple(text: str) -> tuple[int, int]:
    """Major and minor of a version: "2.11.0+cpu" -> (2, 11)."""
    parts = text.split("+")[0].split(".")
    digits = ["".join(ch for ch in part if ch.isdigit()) or "0" for part in parts[:2]]
    return int(digits[0]), int(digits[1]) if len(digits) > 1 else 0


def nvidia_driver() -> str | None:
    """The version line of the loaded NVIDIA kernel driver, or None."""
    first = _read("/proc/driver/nvidia/version").splitlines()
    return first[0].partition(":")[2].strip() or None if first else None


def nvidia_gpus() -> list[str]:
    """The model names of the GPUs that the kernel driver knows."""
    names = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        names.append(_cpuinfo_field(_read(path), "Model") or path.parent.name)
    return names


def describe() -> dict[str, object]:
    """The machine as a bench report records it: what a reader needs to judge its figures."""
    total, available = memory_bytes()
    return {
        "cpu": cpu_model(),
        "architecture": platform.machine(),
        "isa": isa(),
        "cores": cores(),
        "cpu_quota": cpu_quota(),
        "caches": cache_bytes(),
        "memory_bytes": total,
        "memory_available_bytes": available,
        "system": f"{platform.system()} {platform.release()}",
    }


def versions() -> dict[str, str | None]:
    """Versions of the interpreter and of the packages that a result depends on."""
    return {
        "python": platform.python_version(),
        **{name: package_version(name) for name in ("hpcattn", "torch", "transformers", "numpy")},
    }
