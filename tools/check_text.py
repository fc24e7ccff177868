# SPDX-License-Identifier: Apache-2.0
"""Checks text files: no trailing blanks, one newline at the end, no merge marks, SPDX line, size.

python3 tools/check_text.py [FILE...]      (all files that git knows, where none is named)
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MAX_BYTES = 500_000
SPDX = "SPDX-License-Identifier: Apache-2.0"
NEEDS_SPDX = {".cc", ".h", ".py", ".cmake", ".sh"}
MERGE_MARKS = ("<" * 7 + " ", ">" * 7 + " ")
# Binary, or drawn by a program that has its own way with blanks: their size alone is looked at.
NOT_WRITTEN_BY_HAND = {".gguf", ".png", ".safetensors", ".svg"}


def faults_of(path: Path) -> list[str]:
    """What is wrong with one file."""
    size = path.stat().st_size
    if size > MAX_BYTES:
        return [f"{size} bytes, at most {MAX_BYTES} are expected in the repository"]
    if path.suffix in NOT_WRITTEN_BY_HAND:
        return []
    text = path.read_text(encoding="utf-8")
    faults = []
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if line != line.rstrip():
            faults.append(f"line {number} ends in blanks")
        if line.startswith(MERGE_MARKS):
            faults.append(f"line {number} is a merge mark")
    if text and (not text.endswith("\n") or text.endswith("\n\n")):
        faults.append("the file must end in one newline")
    if path.suffix in NEEDS_SPDX and text and not any(SPDX in line for line in lines[:2]):
        faults.append(f"the first line (the second after #!) must say {SPDX}")
    return faults


def main() -> int:
    """Checks the files of the command line, or all."""
    names = sys.argv[1:]
    if not names:
        listing = subprocess.run(
            ["git", "ls-files", "-z"], check=True, capture_output=True, text=True
        )
        names = [name for name in listing.stdout.split("\0") if name]
    failed = 0
    for name in names:
        path = Path(name)
        if not path.is_file():
            continue  # deleted in the working tree
        for fault in faults_of(path):
            print(f"{name}: {fault}")
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
