# SPDX-License-Identifier: Apache-2.0
"""`hpcattn install-hpc`: the package `hpc`, by its own switch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hpcattn.cli import shell
from hpcattn.integrations.hpc import install


def install_hpc(
    target: Annotated[
        Path | None,
        typer.Option(help="Folder to install to; default: this Python's site-packages."),
    ] = None,
    uninstall: Annotated[
        bool, typer.Option("--uninstall", help="Remove what this command wrote.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Say what 'hpc' is here, and do nothing.")
    ] = False,
    json_output: shell.JsonOption = False,
) -> None:
    """Let `import hpc` find hpcattn; another package of that name is left as it is."""
    if uninstall and status:
        raise ValueError("--uninstall and --status: expected one of them")
    action = "status" if status else "uninstall" if uninstall else "install"
    answer = install.ACTIONS[action](target)
    if json_output:
        shell.print_json({"schema": 1, "action": action, "message": answer})
    else:
        shell.out().print(answer, soft_wrap=True)
