# SPDX-License-Identifier: Apache-2.0
"""`hpcattn generate`: text from a model, its attention computed by hpcattn."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hpcattn.cli import shell

_BUILTIN = "smollm2-135m-instruct"

# Asked where the user asks nothing.
SAMPLE_PROMPTS = (
    "What is gravity?",
    "What is the capital of France?",
    "Explain in one sentence what a computer does.",
)


def generate(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            help="Prompts. None: those of --prompts-file or standard input; else three samples."
        ),
    ] = None,
    prompts_file: Annotated[
        Path | None, typer.Option(help="A file of prompts, one a line; - for standard input.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="A local Hugging Face folder, or the built-in model.")
    ] = _BUILTIN,
    max_new_tokens: Annotated[int, typer.Option(help="New tokens of each prompt, at most.")] = 64,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    dtype: Annotated[
        str | None,
        typer.Option(
            help="bfloat16, float16 or, on the CPU, float32. By default float32 on the CPU and"
            " bfloat16 on a GPU."
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0: the likeliest token at each place.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Sample among this share of likelihood.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 0,
    threads: Annotated[int | None, typer.Option(help="Threads of the CPU; all by default.")] = None,
    page_size: Annotated[int, typer.Option(help="Tokens of a KV page, a multiple of 8.")] = 16,
    pages: Annotated[
        int | None, typer.Option(help="Pages of the KV cache; fewer make requests take turns.")
    ] = None,
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--batch",
            help="Show each text as it comes, one prompt after the other; or all prompts at once."
            " By default a single prompt streams.",
        ),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat/--no-chat", help="Use the model's chat template if it has one.")
    ] = True,
    compare: Annotated[
        str | None,
        typer.Option(
            help="Run the prompts again with this attention (eager, sdpa) and show the first token"
            " that differs; exit code 1 if one does."
        ),
    ] = None,
    json_output: shell.JsonOption = False,
) -> None:
    """Text from a model, every attention of it computed by hpcattn over paged KV."""
    import torch

    from hpcattn import generate as engine
    from hpcattn import generate_compare, models

    texts = _read_prompts(prompts or [], prompts_file)
    options = engine.Options(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        page_size=page_size,
        num_pages=pages,
    )
    if compare is not None and compare not in ("eager", "sdpa"):
        raise ValueError(f"--compare is {compare!r}, expected eager or sdpa.")
    if compare is not None and temperature > 0:
        raise ValueError("--compare needs --temperature 0: sampled texts differ by chance.")
    if threads is not None:
        if threads < 1:
            raise ValueError(f"--threads is {threads}, expected 1 or more.")
        torch.set_num_threads(threads)

    place = models.parse_device(device)
    dtype = dtype or models.default_dtype(place)
    parsed = models.parse_dtype(dtype)
    if place.type == "cuda" and parsed == torch.float32:
        raise ValueError(
            "--dtype is float32, expected bfloat16 or float16 on a GPU: attention in float32 is the"
            " CPU's alone."
        )
    err = shell.err()
    loaded = models.load(model, dtype=parsed, device=place, note=err.print)
    if place.type == "cuda":
        from hpcattn._prepare import prepare

        prepared = prepare(loaded.model, progress=not json_output)
        err.print(
            f"{len(prepared.kernels)} kernels ready in {prepared.seconds:.1f} s,"
            f" {prepared.compiled} of them compiled"
        )
    if stream is None:
        stream = len(texts) == 1
    if stream:
        reports = [
            _streamed(engine, loaded, text, options, chat, show=not json_output) for text in texts
        ]
    else:
        reports = [_batch(engine, loaded, texts, options, chat, err, show=not json_output)]

    comparisons = []
    if compare is not None:
        for report in reports:
            comparisons.append(generate_compare.compare(loaded, report, compare, options))
    document = _document(model, str(place), dtype, torch.get_num_threads(), reports, comparisons)
    if json_output:
        shell.print_json(document)
    else:
        _print_summary(document, err)
    if any(comparison.differences for comparison in comparisons):
        raise typer.Exit(1)


def _read_prompts(arguments: list[str], file: Path | None) -> list[str]:
    """Prompts from the arguments, a file or standard input (one a line), else the samples."""
    if arguments:
        if file is not None:
            raise ValueError("prompts are given as arguments and as --prompts-file, expected one.")
        texts = arguments
    elif file is not None and str(file) != "-":
        texts = file.read_text(encoding="utf-8").splitlines()
    else:
        given = "" if file is None and sys.stdin.isatty() else sys.stdin.read()
        if file is None and not given:
            return list(SAMPLE_PROMPTS)
        texts = given.splitlines()
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise ValueError("no prompts, expected at least one that is not blank.")
    return texts


class _TextStream:
    """Writes the text of growing tokens; holds back the bytes of an unfinished character."""

    def __init__(self, decode: Callable[[list[int]], str], show: bool) -> None:
        self._decode = decode
        self._show = show
        self._written = ""

    def __call__(self, _index: int, tokens: list[int]) -> None:
        text = self._decode(tokens)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            self._write(text)

    def finish(self, text: str) -> None:
        """The whole text: writes what was held back, and ends the line."""
        self._write(text)
        if self._show:
            print(flush=True)

    def _write(self, text: str) -> None:
        if self._show:
            print(text[len(self._written) :], end="", flush=True)
        self._written = text


def _streamed(engine: Any, loaded: Any, text: str, options: Any, chat: bool, *, show: bool) -> Any:
    writer = _TextStream(lambda tokens: engine.decode(loaded, tokens), show)
    report = engine.generate(loaded, [text], options, chat=chat, on_token=writer)
    writer.finish(report.completions[0].text)
    return report


def _batch(
    engine: Any,
    loaded: Any,
    texts: list[str],
    options: Any,
    chat: bool,
    err: Console,
    *,
    show: bool,
) -> Any:
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tokens"),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not (show and err.is_terminal),
    ) as progress:
        task = progress.add_task("generating", total=len(texts) * options.max_new_tokens)
        counts = [0] * len(texts)

        def on_token(index: int, tokens: list[int]) -> None:
            counts[index] = len(tokens)
            progress.update(task, completed=sum(counts))

        report = engine.generate(loaded, texts, options, chat=chat, on_token=on_token)
    if show:
        for completion in report.completions:
            print(f"> {completion.prompt}\n{completion.text}\n", flush=True)
    return report


def _document(
    model: str,
    device: str,
    dtype: str,
    threads: int,
    reports: list[Any],
    comparisons: list[Any],
) -> dict[str, Any]:
    """The whole run, as --json prints it."""
    seconds = sum(report.seconds for report in reports)
    new_tokens = sum(report.new_tokens for report in reports)
    document: dict[str, Any] = {
        "model": model,
        "device": device,
        "dtype": dtype,
        "threads": threads,
        "completions": [asdict(c) for report in reports for c in report.completions],
        "new_tokens": new_tokens,
        "seconds": seconds,
        "tokens_per_second": new_tokens / seconds,
        "first_token_seconds": [report.first_token_seconds for report in reports],
        "page_size": reports[0].page_size,
        "num_pages": max(report.num_pages for report in reports),
        "peak_pages": max(report.peak_pages for report in reports),
        "calls": _added(report.calls for report in reports),
        "kernels": _added(report.kernels for report in reports),
        "compilations": sum(report.compilations for report in reports),
    }
    if comparisons:
        compared_seconds = sum(c.seconds for c in comparisons)
        compared_tokens = sum(c.new_tokens for c in comparisons)
        first_prompt, differences = 0, []
        for report, comparison in zip(reports, comparisons, strict=True):
            for difference in comparison.differences:
                shifted = first_prompt + difference.prompt_idx
                differences.append({**asdict(difference), "prompt_idx": shifted})
            first_prompt += len(report.completions)
        document["compare"] = {
            "attention": comparisons[0].attention,
            "seconds": compared_seconds,
            "tokens_per_second": compared_tokens / compared_seconds,
            "differences": differences,
        }
    return document


def _added(counts: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for count in counts:
        for name, value in count.items():
            total[name] = total.get(name, 0) + value
    return total


def _print_summary(document: dict[str, Any], err: Console) -> None:
    """What ran, on standard error: standard output has the texts alone."""
    err.print(
        f"{document['new_tokens']} tokens in {document['seconds']:.2f} s:"
        f" {document['tokens_per_second']:.1f} tokens/s"
        f" ({document['device']}, threads: {document['threads']}, {document['dtype']})"
    )
    err.print(
        f"pages used: {document['peak_pages']} of {document['num_pages']},"
        f" {document['page_size']} tokens each"
    )
    err.print(f"calls that reached hpcattn: {_counts_text(document['calls'])}")
    err.print(f"kernels that answered: {_counts_text(document['kernels'])}")
    if document["device"] != "cpu":
        err.print(f"kernels compiled meanwhile: {document['compilations']}")
    comparison = document.get("compare")
    if comparison is None:
        return
    speed = f"{comparison['tokens_per_second']:.1f} tokens/s"
    if not comparison["differences"]:
        err.print(f"{comparison['attention']}: the same tokens ({speed})")
    for difference in comparison["differences"]:
        err.print(
            f"{comparison['attention']}: prompt {difference['prompt_idx'] + 1} differs first at new"
            f" token {difference['token_idx'] + 1}: hpcattn {difference['got']!r},"
            f" {comparison['attention']} {difference['expected']!r} ({speed})"
        )


def _counts_text(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
