# SPDX-License-Identifier: Apache-2.0
"""`hpcattn bench`: hpcattn beside torch on this machine."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpcattn.bench.batch import parse_batch, parse_count, parse_heads
from hpcattn.bench.cases import (
    GPU_SUITES,
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
    import torch

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
    swept = [c for c in cases if isinstance(c, AttentionCase) and c.kind == "decode"]
    shapes = {(c.batch.num_requests, c.batch.kv_lens[0]) for c in swept}

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


def _measure(cases: list[Case], settings: Settings, device: str, quiet: bool) -> dict[str, object]:
    from hpcattn.bench import gpu, runner

    with BenchProgress(shell.err(), quiet=quiet) as progress:
        if device == "cpu":
            return runner.run_suite(cases, settings, progress)
        return gpu.run_suite(cases, settings, _gpu_of(device), progress)


def _gpu_of(device: str) -> torch.device:
    """The GPU that `--device` names. Raises RuntimeError where there is none."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError(
            f"--device {device}: torch finds no GPU here (torch {torch.__version__}). `hpcattn "
            "doctor` says what is missing; --device cpu measures the CPU."
        )
    found = torch.device(device)
    index = torch.cuda.current_device() if found.index is None else found.index
    if index >= torch.cuda.device_count():
        raise RuntimeError(f"--device {device}: this machine has {torch.cuda.device_count()} GPUs")
    return torch.device("cuda", index)


def _check_device(device: str) -> None:
    """Raises ValueError for what is neither the CPU nor a GPU."""
    if device != "cpu" and not re.fullmatch(r"cuda(:\d+)?", device):
        raise ValueError(f"--device {device}: expected cpu, cuda or cuda:1 and the like")


def _effort(
    device: str, seconds: float | None, min_rounds: int | None, max_rounds: int | None
) -> Effort:
    """How long to measure a case; on a GPU 15 replays, which take milliseconds each."""
    base = Effort() if device == "cpu" else Effort(1.0, 15, 15)
    most = base.max_rounds if max_rounds is None else max_rounds
    if min_rounds is None:
        min_rounds = min(base.min_rounds, most)
    elif max_rounds is None:
        most = max(most, min_rounds)
    return Effort(base.seconds if seconds is None else seconds, min_rounds, most)


def _named(cases: list[Case], only: list[str]) -> list[Case]:
    """The cases whose names hold one of the texts."""
    found = [case for case in cases if any(text in case.name for text in only)] if only else cases
    if not found:
        names = "; ".join(case.name for case in cases)
        raise ValueError(
            f"--only {', '.join(only)}: no case has it in its name. There are: {names}"
        )
    return found


def bench(
    device: Annotated[
        str, typer.Option(help="Where to measure: cpu, or a GPU as cuda or cuda:1.")
    ] = "cpu",
    suite: Annotated[
        str,
        typer.Option(help=f"{' or '.join(SUITES)}: the shapes of the bars, or sweeps besides."),
    ] = "standard",
    only: Annotated[
        list[str] | None,
        typer.Option(help="Of the suite, the cases with this text in their name. Repeatable."),
    ] = None,
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
        str | None,
        typer.Option(
            help="Of --decode and others, separated by commas; by default float32,bfloat16, and "
            "bfloat16 on a GPU."
        ),
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(help="Of the KV cache: q's, or float8_e4m3, float8_e5m2.")
    ] = None,
    window: Annotated[str | None, typer.Option(help="Tokens of a sliding window, as 4K.")] = None,
    threads: Annotated[
        int, typer.Option(help="Threads, ours and torch's alike. 0: as torch has them.")
    ] = 0,
    seconds: Annotated[
        float | None, typer.Option(help="Time to spend on a case; by default 6, on a GPU 1.")
    ] = None,
    min_rounds: Annotated[
        int | None,
        typer.Option(help="Rounds of a case at least; by default 7, on a GPU 15."),
    ] = None,
    max_rounds: Annotated[
        int | None,
        typer.Option(help="Rounds of a case at most; by default 60, on a GPU 15."),
    ] = None,
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

    Contenders take turns, with caches emptied before every call, on a GPU as graphs of several
    layers. Our answers are checked first.
    """
    _check_device(device)
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
            usual = "float32,bfloat16" if device == "cpu" else "bfloat16"
            dtypes = [parse_dtype(text) for text in (dtype or usual).split(",")]
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
            cases = (SUITES if device == "cpu" else GPU_SUITES)[suite]()
        cases = _named(cases, only or [])
        effort = _effort(device, seconds, min_rounds, max_rounds)
        from hpcattn.bench.runner import Settings

        settings = Settings(effort, threads, read_mib << 20, seed)
        quiet = json_output and not sys.stderr.isatty()
        report = _measure(cases, settings, device, quiet)
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
