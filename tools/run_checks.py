# SPDX-License-Identifier: Apache-2.0
"""Runs make targets one after the other, and sums up.

Each step's whole output goes to build/logs/STEP.log. What is shown of it: a line of progress at
most every few seconds, the closing lines of test runners, and the end of the log where the step
fails. All steps run, also after one has failed. The last line is `N passed, N failed`: tests, and
one for each step without tests.

    python3 tools/run_checks.py [--verbose] TARGET...
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

LOGS = Path("build/logs")
SECONDS_BETWEEN_PROGRESS = 15.0
LINES_OF_A_FAILURE = 80

# Of CTest 3 and 4; the latter leaves out a count of 0 failed.
_CTEST = re.compile(r"tests passed(?:, (?P<failed>\d+) tests? failed)? out of (?P<total>\d+)")
_PYTEST = re.compile(r"^=* ?(?:\d+ [a-z]+, )*(?:\d+ [a-z]+) in [0-9.]+s")
_PYTEST_COUNT = re.compile(r"(?P<count>\d+) (?P<word>passed|failed|errors?|skipped)")
_ALWAYS_SHOWN = re.compile(r"^==> |^(?:lines|TOTAL)\b|^fuzz: ")


@dataclass
class Result:
    """Outcome of one step."""

    target: str
    status: int = 0
    seconds: float = 0.0
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def count(self, line: str) -> bool:
        """Adds a test runner's closing line; false where `line` is none."""
        if match := _CTEST.search(line):
            failed = int(match["failed"] or 0)
            self.failed += failed
            self.passed += int(match["total"]) - failed
            return True
        if _PYTEST.match(line):
            for match in _PYTEST_COUNT.finditer(line):
                if match["word"] == "passed":
                    self.passed += int(match["count"])
                elif match["word"] == "skipped":
                    self.skipped += int(match["count"])
                else:
                    self.failed += int(match["count"])
            return True
        return False

    def close(self) -> None:
        """A step without tests counts as one; a failed step has at least one failure."""
        if self.status != 0:
            self.failed = max(self.failed, 1)
        elif self.passed + self.failed == 0:
            self.passed = 1


def run(target: str, title: str, verbose: bool) -> Result:
    """Runs `make target`."""
    print(f"==> {title}: make {target}", flush=True)
    result = Result(target)
    log_path = LOGS / f"{target}.log"
    start = last_shown = time.monotonic()
    with (
        log_path.open("w", encoding="utf-8", errors="replace") as log,
        subprocess.Popen(
            ["make", "--keep-going", "--no-print-directory", target],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            now = time.monotonic()
            shown = result.count(line) or verbose or _ALWAYS_SHOWN.match(line) is not None
            if not shown and line.strip() and now - last_shown > SECONDS_BETWEEN_PROGRESS:
                line = f"... {now - start:4.0f} s  {line.strip()[:100]}\n"
                shown = True
            if shown:
                last_shown = now
                print(line, end="", flush=True)
    result.status = process.returncode
    result.seconds = time.monotonic() - start
    result.close()
    if result.status != 0 and not verbose:
        lines = log_path.read_text(encoding="utf-8").splitlines()
        print(f"--- the end of {log_path}:")
        print("\n".join(lines[-LINES_OF_A_FAILURE:]), flush=True)
    return result


def main() -> int:
    """Runs the targets of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("targets", nargs="+", metavar="TARGET")
    parser.add_argument("--verbose", action="store_true", help="show all output")
    options = parser.parse_args()

    LOGS.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    for index, target in enumerate(options.targets, start=1):
        results.append(run(target, f"[{index}/{len(options.targets)}]", options.verbose))

    print("\nstep               time    passed  failed  skipped")
    for result in results:
        verdict = "" if result.status == 0 else f"  FAILED: {LOGS}/{result.target}.log"
        print(
            f"{result.target:16} {result.seconds:5.0f} s  {result.passed:8} {result.failed:7} "
            f"{result.skipped:8}{verdict}"
        )
    passed, failed, skipped = (
        sum(getattr(result, name) for result in results) for name in ("passed", "failed", "skipped")
    )
    print(f"total            {sum(result.seconds for result in results):5.0f} s\n")
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
