# SPDX-License-Identifier: Apache-2.0
"""Progress on standard error: a bar on a terminal, else a line a case or kernel."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hpcattn.cli import shell

if TYPE_CHECKING:
    from hpcattn._prepare import PreparedKernel


class PrepareBar:
    """Shows which kernel is ready, and how many are left; called with each."""

    def __init__(self, *, quiet: bool = False, lines: bool = True) -> None:
        """Prepares the bar.

        Args:
            quiet: Show nothing.
            lines: Where there is no terminal, show a line a kernel.
        """
        self._console = shell.err()
        self._lines = lines and not quiet
        self._bar: Progress | None = None
        if self._console.is_terminal and not quiet:
            self._bar = Progress(
                TextColumn("kernels"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=None)

    def __call__(self, kernel: PreparedKernel, done: int, total: int) -> None:
        """`kernel` is ready, as number `done` of `total`."""
        if self._bar is not None:
            self._bar.update(self._task, total=total, completed=done, description=kernel.name)
        elif self._lines:
            how = "compiled" if kernel.compiled else "found"
            self._console.print(f"[{done}/{total}] {kernel.name}: {how}, {kernel.seconds:.1f} s")

    def __enter__(self) -> PrepareBar:
        """Shows the bar."""
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.stop()


class BenchProgress:
    """Shows which case runs, and how many are left."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        """Prepares the bar.

        Args:
            console: Where to show it.
            quiet: Show nothing.
        """
        self._console = console
        self._quiet = quiet
        self._bar: Progress | None = None
        if console.is_terminal and not quiet:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )
            self._all = self._bar.add_task("bench", total=None)
            self._case = self._bar.add_task("", total=100)

    def start(self, name: str, index: int, count: int) -> None:
        """Case `index` of `count` begins."""
        if self._bar is not None:
            self._bar.update(self._all, total=count, completed=index)
            self._bar.reset(self._case, description=name, total=100)
        elif not self._quiet:
            self._console.print(f"[{index + 1}/{count}] {name}")

    def update(self, share: float) -> None:
        """The present case is done to this share."""
        if self._bar is not None:
            self._bar.update(self._case, completed=round(100 * share))

    def __enter__(self) -> BenchProgress:
        """Shows the bar."""
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.stop()
