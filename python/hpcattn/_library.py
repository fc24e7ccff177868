# SPDX-License-Identifier: Apache-2.0
"""Loads the native library once, and asks it what it counts and supports."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import hpcattn

MIN_TORCH = (2, 10)
_FILE = "hpcattn_torch.so"
_OPERATORS = (
    "paged_attention",
    "packed_attention",
    "merge_partials",
    "store_kv",
    "rope_norm_store_kv",
)


def import_torch() -> Any:
    """Torch, or an ImportError that says what is needed and how to get it."""
    wanted = f"hpcattn needs torch {MIN_TORCH[0]}.{MIN_TORCH[1]} or newer"
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"{wanted}, and torch can not be imported ({error}). Install it: pip install torch"
        ) from error
    match = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if match is None or (int(match[1]), int(match[2])) < MIN_TORCH:
        raise ImportError(
            f"{wanted} (the first with its stable ABI complete), got {torch.__version__}. "
            "Upgrade it: pip install --upgrade torch"
        )
    return torch


def find() -> Path:
    """The native library: beside this file, or where an editable install keeps what it built."""
    folders = [Path(folder) for folder in hpcattn.__path__]
    for folder in folders:
        if (folder / _FILE).is_file():
            return folder / _FILE
    raise ImportError(
        f"hpcattn: {_FILE} is in none of {', '.join(map(str, folders))}. The package was not "
        "built: install it with pip install ."
    )


@functools.cache
def load() -> Any:
    """Loads the library and registers its fake implementations.

    Returns:
        `torch.ops.hpcattn`.

    Raises:
        ImportError: torch is missing or too old, or the package was not built.
    """
    torch = import_torch()
    torch.ops.load_library(str(find()))
    from hpcattn import _fake, _nvrtc

    torch.ops.hpcattn.set_nvrtc_paths(_nvrtc.paths(torch.version.cuda))
    _fake.register()
    return torch.ops.hpcattn


@functools.cache
def support() -> dict[str, Any]:
    """What the operators take, from the library's own table.

    Returns:
        `head_dims` (list of int), `page_size_multiple` (int) and `attention`: for each dtype of q
        the dtypes of `kv` and of `out`, by the names of C++ ("float8_e4m3").
    """
    table: dict[str, Any] = json.loads(load().support())
    return table


def _counters() -> dict[str, int]:
    counters: dict[str, int] = json.loads(load().counters())
    return counters


def call_counts() -> dict[str, int]:
    """How many calls of each operator passed their checks and ran, since the last reset.

    Returns:
        Operator name -> calls of this process, the five operators that compute each in it.
    """
    counters = _counters()
    return {name: counters.get(name, 0) for name in _OPERATORS}


def kernels() -> dict[str, int]:
    """Which kernels ran, since the last reset.

    Returns:
        Kernel name, as "cpu/narrow/avx2" or "cuda/generic/attention" -> tasks that it computed, on
        a GPU launches. Kernels that ran not once are left out.
    """
    return {name: count for name, count in _counters().items() if "/" in name and count > 0}


def reset_call_counts() -> None:
    """Starts `call_counts` and `kernels` anew."""
    load().reset_counters()


def compilations() -> int:
    """How many kernels NVRTC has compiled in this process; no reset changes it.

    Kernels that came from the disk cache or from the wheel do not count. After `prepare` it stays.
    """
    count: int = load().compilations()
    return count


def set_check_values(on: bool) -> bool:
    """Whether calls on a GPU check what lies in device memory: lengths, page ids, slots.

    They are read back before each launch and checked as on the CPU, with the same errors. That
    waits for the stream: it is for finding mistakes, and can not be captured in a graph. On the CPU
    they are always checked.

    Args:
        on: From now on, in this process. At the start: whether the environment variable
            HPCATTN_CHECK_VALUES is 1.

    Returns:
        What it was before.
    """
    before: bool = load().set_check_values(on)
    return before
