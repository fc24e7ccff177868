# SPDX-License-Identifier: Apache-2.0
"""`python -m hpcattn.integrations.hpc install`: the switch, where the command line is missing."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hpcattn.integrations.hpc import install


def main(arguments: list[str] | None = None) -> int:
    """Installs, uninstalls or looks.

    Args:
        arguments: Of the command line; None: those of this process.

    Returns:
        0 done, 1 not.
    """
    parser = argparse.ArgumentParser(
        prog="python -m hpcattn.integrations.hpc",
        description="The package `hpc`, which answers its calls by hpcattn.",
    )
    parser.add_argument("action", choices=("install", "uninstall", "status"))
    parser.add_argument(
        "--target", type=Path, help="Folder to install to; default: this Python's site-packages."
    )
    options = parser.parse_args(arguments)
    try:
        print(install.ACTIONS[options.action](options.target))
    except (OSError, install.InstallError) as error:
        print(f"hpcattn: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
