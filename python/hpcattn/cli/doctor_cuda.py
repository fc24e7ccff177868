# SPDX-License-Identifier: Apache-2.0
"""The CUDA part of `hpcattn doctor`: driver, GPUs, libnvrtc, and where compiled kernels lie."""

from __future__ import annotations

import json
from typing import Any

from hpcattn.bench import machine
from hpcattn.cli.finding import Finding

_GIB, _MIB = 2.0**30, 2.0**20
_FOR_GPUS = "needed for tensors on a GPU alone"
_GET_DRIVER = "install the NVIDIA driver of this system, 525 (CUDA 12.0) or newer"
_GET_NVRTC = (
    "pip install nvidia-cuda-nvrtc (nvidia-cuda-nvrtc-cu12 for a driver of CUDA 12), install a "
    "CUDA build of torch, or set HPCATTN_NVRTC to the path of libnvrtc.so"
)


def status() -> dict[str, Any]:
    """What the native library finds: it opens the driver and libnvrtc, and makes no kernel."""
    from hpcattn import _library

    found: dict[str, Any] = json.loads(_library.load().cuda_status(True))
    return found


def usable(status: dict[str, Any]) -> list[dict[str, Any]]:
    """The GPUs that hpcattn computes on."""
    return [device for device in status["driver"]["devices"] if not device["problem"]]


def findings(status: dict[str, Any] | None) -> list[Finding]:
    """What there is and what is missing; with no status (no native library), from files alone."""
    kernel_driver, gpus = machine.nvidia_driver(), machine.nvidia_gpus()
    # Where there is no GPU, nothing needs to be got.
    wanted = bool(kernel_driver or gpus)
    found = [
        Finding("NVIDIA driver", "ok", kernel_driver)
        if kernel_driver
        else Finding("NVIDIA driver", "missing", f"no /proc/driver/nvidia/version; {_FOR_GPUS}"),
    ]
    if status is None:
        detail = ", ".join(gpus) or f"the driver names none; {_FOR_GPUS}"
        return [*found, Finding("NVIDIA GPUs", "ok" if gpus else "missing", detail)]
    if status["driver"]["devices"]:
        wanted = True
    return [
        *found,
        _libcuda(status["driver"], wanted),
        *map(_gpu, status["driver"]["devices"]),
        _libnvrtc(status["nvrtc"], wanted),
        _cache(status["cache"]),
        _shipped(status["shipped"]),
    ]


def _libcuda(driver: dict[str, Any], wanted: bool) -> Finding:
    if not driver["problem"]:
        return Finding("libcuda", "ok", f"CUDA {driver['cuda_version']}, {driver['path']}")
    if not wanted:
        return Finding("libcuda", "missing", f"comes with the NVIDIA driver; {_FOR_GPUS}")
    return Finding("libcuda", "failed", driver["problem"], _GET_DRIVER)


def _gpu(device: dict[str, Any]) -> Finding:
    name = f"GPU {device['index']}"
    if device["problem"]:
        return Finding(name, "unsupported", device["problem"])
    return Finding(
        name,
        "ok",
        f"{device['name']}, {device['arch']}, {device['num_sms']} multiprocessors, "
        f"{device['memory_bytes'] / _GIB:.0f} GiB",
    )


def _libnvrtc(nvrtc: dict[str, Any], wanted: bool) -> Finding:
    if nvrtc["problem"]:
        return Finding(
            "libnvrtc", "missing", nvrtc["problem"] if wanted else _FOR_GPUS, _GET_NVRTC * wanted
        )
    archs = ", ".join(f"sm_{arch}" for arch in nvrtc["archs"])
    return Finding("libnvrtc", "ok", f"{nvrtc['version']}, {nvrtc['path']}, for {archs}")


def _cache(cache: dict[str, Any]) -> Finding:
    if cache["problem"]:
        return Finding(
            "kernel cache",
            "failed",
            f"{cache['problem']}; kernels are compiled anew by each process",
            "set HPCATTN_CACHE_DIR to a folder that you alone can write to",
        )
    return Finding("kernel cache", "ok", _content(cache))


def _shipped(shipped: dict[str, Any]) -> Finding:
    if not shipped["kernels"]:
        return Finding("built kernels", "missing", "none came with the package; they get compiled")
    return Finding("built kernels", "ok", _content(shipped))


def _content(folder: dict[str, Any]) -> str:
    return f"{folder['folder']}, {folder['kernels']} kernels, {folder['bytes'] / _MIB:.1f} MiB"
