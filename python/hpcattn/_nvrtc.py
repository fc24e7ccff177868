# SPDX-License-Identifier: Apache-2.0
"""Where pip's packages keep libnvrtc. Files are looked at; nothing is loaded."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path


def paths(cuda_version: str | None = None, folders: Iterable[str] | None = None) -> list[str]:
    """The libraries that are there, those of torch's own CUDA version first.

    Args:
        cuda_version: What torch was built for, as `torch.version.cuda` says it: "13.0".
        folders: Where packages are installed; `sys.path` where it is not given.

    Returns:
        Paths of libnvrtc.so.*; compiler and builtins of one version lie beside each other.
    """
    found: list[str] = []
    for folder in sys.path if folders is None else folders:
        for path in sorted((Path(folder) / "nvidia").glob("*/lib/libnvrtc.so.*")):
            if str(path) not in found and ".alt." not in path.name:
                found.append(str(path))
    major = (cuda_version or "").partition(".")[0]
    # Stable: of one major version, the first on the path stays the first.
    return sorted(found, key=lambda path: (not path.endswith(f".so.{major}"), _newest_first(path)))


def _newest_first(path: str) -> int:
    version = path.rpartition(".so.")[2].partition(".")[0]
    return -int(version) if version.isdigit() else 0
