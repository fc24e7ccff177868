# SPDX-License-Identifier: Apache-2.0
"""KV split over two processes and merged by LSE equals one pass, by vLLM's own groups over gloo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_two_ranks_equal_one_pass(tmp_path: Path) -> None:
    program = Path(__file__).with_name("ranks.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program), str(rank), str(tmp_path / "meet")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            output, errors = rank.communicate(timeout=240)
            assert output.splitlines()[-1:] == ["equal"], errors[-4000:]
    finally:
        for rank in ranks:
            rank.kill()
