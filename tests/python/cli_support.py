# SPDX-License-Identifier: Apache-2.0
"""Running the command line in this process and in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner

from hpcattn.cli.app import app

# Small enough for milliseconds; large enough that every code path runs.
TINY = ["--heads", "4:2", "--head-dim", "64", "--seconds", "0.02", "--min-rounds", "2"]
TINY += ["--max-rounds", "3", "--read-mib", "4"]


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as JSON: fails where anything else is on it."""
        return json.loads(self.out)


def run(*args: str) -> Outcome:
    """`hpcattn ARGS`, here."""
    result = CliRunner().invoke(app, list(args), prog_name="hpcattn")
    return Outcome(result.exit_code, result.stdout, result.stderr)


def run_process(*args: str, code: str | None = None, timeout: float = 180) -> Outcome:
    """`hpcattn ARGS` in a process of its own; `code` is Python to run instead of the module."""
    start = ["-m", "hpcattn.cli"] if code is None else ["-c", code]
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, *start, *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=env,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
