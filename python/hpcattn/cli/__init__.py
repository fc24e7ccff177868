# SPDX-License-Identifier: Apache-2.0
"""The command line `hpcattn`: generate, bench, doctor and explain."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line, or says what to install for it.

    The package itself needs neither typer nor rich: its script is there without them too.
    """
    try:
        from hpcattn.cli.app import main as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("typer", "rich"):
            raise
        print(
            f"hpcattn: error: the command line needs {error.name}, which is not installed. "
            "pip install 'hpcattn[cli]'",
            file=sys.stderr,
        )
        raise SystemExit(1) from None
    run()
