# SPDX-License-Identifier: Apache-2.0
"""`hpcattn bench`: hpcattn beside torch on this machine."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpcattn.bench.batch import parse_batch, parse_count, parse_heads
from hpcattn.bench.cases import (
    SUITES,
    AttentionCase,
    Case,
    Heads,
    RopeCase,
    parse_dtype,
)
from hpcattn.bench.timing import Effort
from hpcattn.cli import shell
from hpcattn.cli.progress import BenchProgress

if TYPE_CHECKING:
    from hpcattn.bench.runner import Settings


def _own_cases(
    decode: list[str],
    prefill: list[str],
    rope: list[str],
    heads: str,
    head_dim: int,
    page_size: int,
    dtypes: list[str],
    kv_dtype: str | None,
    window: str | None,
) -> list[Case]:
    """The cases that the options name, each in every dtype."""
    geometry = Heads(*parse_heads(heads), head_dim)
    tokens = parse_count(window) if window is not None else None
    cases: list[Case] = []
    for dtype in dtypes:
        for text, rows in [*((t, 1) for t in decode), *((t, None) for t in prefill)]:
            case = AttentionCase(
                parse_batch(text, rows), geometry, page_size, dtype, kv_dtype or dtype, tokens
            )
            cases.append(case)
        cases += [RopeCase(parse_batch(text, None), geometry, page_size, dtype) for text in rope]
    return _with_sweeps(cases)


def _with_sweeps(cases: list[Case]) -> list[Case]:
    """Names the curves of `--plot`: decode cases alike in batch or in context, but not in both."""
    shapes = {(c.batch.num_requests, c.batch.kv_lens[0]) for c in cases if c.kind == "decode"}

    def sweeps_of(case: AttentionCase) -> str:
        count, context = case.batch.num_requests, case.batch.kv_lens[0]
        found = []
        if sum(shape[0] == count for shape in shapes) > 1 or len(shapes) == 1:
            found.append("context")
        if sum(shape[1] == context for shape in shapes) > 1:
            found.append("batch")
        return ",".join(found)

    return [
        replace(c, sweep=sweeps_of(c)) if isinstance(c, AttentionCase) and c.kind == "decode" else c
        for c in cases
    ]


def _measure(cases: list[Case], settings: Settings, quiet: bool) -> dict[str, object]:
    from hpcattn.bench.runner import run_suite

    with BenchProgress(shell.err(), quiet=quiet) as progress:
        return run_suite(cases, settings, progress)


def bench(
    device: Annotated[str, typer.Option(help="Where to measure: cpu.")] = "cpu",
    suite: Annotated[
        str,
        typer.Option(help=f"{' or '.join(SUITES)}: the shapes of the bars, or sweeps besides."),
    ] = "standard",
    decode: Annotated[
        list[str] | None,
        typer.Option(
            help="A decode batch instead of a suite, as 16x2K or 1x32K+15x2K. Repeatable."
        ),
    ] = None,
    prefill: Annotated[
        list[str] | None,
        typer.Option(help="A prefill batch instead of a suite, as 1x2K. Repeatable."),
    ] = None,
    rope: Annotated[
        list[str] | None,
        typer.Option(help="Tokens of a fused prologue instead of a suite, as 2K. Repeatable."),
    ] = None,
    heads: Annotated[
        str, typer.Option(help="Query heads:KV heads of --decode and others.")
    ] = "32:8",
    head_dim: Annotated[int, typer.Option(help="Size of a head.")] = 128,
    page_size: Annotated[int, typer.Option(help="Tokens of a page.")] = 16,
    dtype: Annotated[
        str, typer.Option(help="Of --decode and others, separated by commas.")
    ] = "float32,bfloat16",
    kv_dtype: Annotated[
        str | None, typer.Option(help="Of the KV cache: q's, or float8_e4m3, float8_e5m2.")
    ] = None,
    window: Annotated[str | None, typer.Option(help="Tokens of a sliding window, as 4K.")] = None,
    threads: Annotated[
        int, typer.Option(help="Threads, ours and torch's alike. 0: as torch has them.")
    ] = 0,
    seconds: Annotated[float, typer.Option(help="Time to spend on a case.")] = 6.0,
    min_rounds: Annotated[int, typer.Option(help="Rounds of a case at least.")] = 7,
    max_rounds: Annotated[int, typer.Option(help="Rounds of a case at most.")] = 60,
    read_mib: Annotated[
        int, typer.Option(help="MiB of the buffer that read bandwidth is measured on.")
    ] = 1024,
    seed: Annotated[int, typer.Option(help="Of the random tensors.")] = 0,
    show: Annotated[
        Path | None,
        typer.Option("--from", help="Show a report that --output wrote; measure nothing."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Keep the report in this JSON file.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw time against context and batch to a .png, .svg or .pdf file."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 where a bar is not met.")
    ] = False,
    json_output: shell.JsonOption = False,
) -> None:
    """Measure attention and the fused prologue beside torch, and the machine's ceilings.

    Contenders take turns, with caches emptied before every call. Our answers are checked first.
    """
    if device != "cpu":
        raise NotImplementedError(
            f"--device {device}: this version of hpcattn computes on the CPU alone; it has no "
            "kernels for another device to measure. Use --device cpu."
        )
    if suite not in SUITES:
        raise ValueError(f"--suite {suite}: expected {' or '.join(SUITES)}")
    if threads < 0 or read_mib < 1:
        raise ValueError("--threads must be 0 or more, and --read-mib 1 or more")
    from hpcattn.bench import plot as figures
    from hpcattn.bench import report as reports

    if plot is not None:
        figures.check_plot_path(plot)
    if show is not None:
        report = reports.load(show)
    else:
        if decode or prefill or rope:
            dtypes = [parse_dtype(text) for text in dtype.split(",")]
            cache = parse_dtype(kv_dtype) if kv_dtype is not None else None
            cases = _own_cases(
                decode or [],
                prefill or [],
                rope or [],
                heads,
                head_dim,
                page_size,
                dtypes,
                cache,
                window,
            )
        else:
            cases = SUITES[suite]()
        from hpcattn.bench.runner import Settings

        settings = Settings(Effort(seconds, min_rounds, max_rounds), threads, read_mib << 20, seed)
        report = _measure(cases, settings, quiet=json_output and not sys.stderr.isatty())
    if output is not None:
        reports.save(report, output)
    if plot is not None:
        figures.draw(report, plot)
    if json_output:
        shell.print_json(report)
    else:
        reports.show(report, shell.out())
    for path in (output, plot):
        if path is not None:
            shell.err().print(f"wrote {path}")
    if strict and not all(verdict["met"] for verdict in report["verdicts"]):
        raise typer.Exit(shell.EXIT_FAILED)
