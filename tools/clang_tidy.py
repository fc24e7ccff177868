# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy over the core library's sources, in parallel, and remembers what passed.

A source is checked again when it, any header of the project, its compile command, .clang-tidy or
clang-tidy itself has changed. A kernel that is compiled for several instruction sets is checked as
the newest of them, which sees the most code.

    python3 tools/clang_tidy.py --build build/release [--jobs N] [PATTERN...]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def checked_entries(build: Path, patterns: list[str]) -> dict[str, dict[str, str]]:
    """Compile commands of the core by source path (relative), one a source."""
    entries: dict[str, dict[str, str]] = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        path = Path(entry["file"]).resolve()
        if not path.is_relative_to(ROOT / "src"):
            continue
        name = str(path.relative_to(ROOT))
        if name.endswith("_test.cc") or (patterns and not any(p in name for p in patterns)):
            continue
        entries[name] = entry  # variants are listed in rising order: the last one stays
    return entries


def fingerprint_of_headers() -> bytes:
    """Changes whenever a header of the project does."""
    digest = hashlib.sha256()
    for folder in ("include", "src"):
        for header in sorted((ROOT / folder).rglob("*.h")):
            digest.update(str(header.relative_to(ROOT)).encode())
            digest.update(header.read_bytes())
    return digest.digest()


def main() -> int:
    """Checks every source; 1 where one has a finding."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="parts of source paths")
    options = parser.parse_args()

    tidy = shutil.which("clang-tidy")
    if tidy is None:
        print("clang_tidy: no clang-tidy on PATH; `make setup` installs one", file=sys.stderr)
        return 1
    version = subprocess.run([tidy, "--version"], check=True, capture_output=True).stdout
    common = version + (ROOT / ".clang-tidy").read_bytes() + fingerprint_of_headers()

    work = options.build / "tidy"
    work.mkdir(parents=True, exist_ok=True)
    entries = checked_entries(options.build, options.patterns)
    database = list(entries.values())
    (work / "compile_commands.json").write_text(json.dumps(database), encoding="utf-8")

    def check(name: str) -> tuple[str, bool, str]:
        command = entries[name].get("command", "")
        key = hashlib.sha256(common + command.encode() + (ROOT / name).read_bytes()).hexdigest()
        stamp = work / f"{key}.passed"
        if stamp.exists():
            return name, True, ""
        done = subprocess.run(
            [tidy, "--quiet", "-p", str(work), str(ROOT / name)],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode == 0:
            stamp.touch()
            return name, True, ""
        return name, False, done.stdout + done.stderr

    failed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for index, (name, passed, output) in enumerate(pool.map(check, sorted(entries)), start=1):
            print(f"[{index}/{len(entries)}] {name}{'' if passed else '  FAILED'}", flush=True)
            if not passed:
                failed += 1
                print(output, flush=True)
    print(f"==> clang-tidy: {len(entries) - failed} of {len(entries)} sources pass", flush=True)
    return 1 if failed or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
