# SPDX-License-Identifier: Apache-2.0
"""`hpcattn explain`: which kernel answers a shape and why, and how the plan cuts its batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from hpcattn.bench.batch import Batch, parse_batch, parse_count, parse_heads
from hpcattn.bench.cases import DTYPES, parse_dtype
from hpcattn.cli import explain_gpu, shell
from hpcattn.cli.schedule import schedule

if TYPE_CHECKING:
    from hpcattn._introspect import Task

# Columns of the picture of tasks over workers.
_PICTURE_WIDTH = 96
_PICTURE_WORKERS = 32
_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

# The backend's names of cache dtypes; "auto" is the model's own.
_CACHE_NAMES = {"float8_e4m3": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}


def _picture(taken: list[list[Task]], costs: list[int]) -> list[str]:
    """A line a worker: its tasks from left to right, as wide as they cost, named by request."""
    longest = max(costs, default=0)
    lines = []
    for worker, tasks in enumerate(taken[:_PICTURE_WORKERS]):
        cells, done = "", 0
        for task in tasks:
            done += task.cost
            end = round(_PICTURE_WIDTH * done / longest) if longest else 0
            width = end - len(cells)
            letter = _LETTERS[task.request % len(_LETTERS)]
            # A bar at its end tells a task from its neighbour of the same request.
            cells += letter * (width - 1) + "|" if width > 1 else letter * width
        lines.append(f"worker {worker:3d}  {cells}")
    if len(taken) > _PICTURE_WORKERS:
        lines.append(f"... and {len(taken) - _PICTURE_WORKERS} workers more")
    return lines


def _request(
    batch: Batch,
    heads: tuple[int, int],
    head_dim: int,
    page_size: int,
    dtype: str,
    query_dtype: str | None,
    kv_dtype: str,
    **options: Any,
) -> dict[str, Any]:
    """What the backend is asked."""
    import torch

    request: dict[str, Any] = {
        "num_q_heads": heads[0],
        "num_kv_heads": heads[1],
        "head_dim": head_dim,
        "page_size": page_size,
        "dtype": getattr(torch, DTYPES[dtype]),
        "kv_cache_dtype": _CACHE_NAMES.get(kv_dtype, kv_dtype),
        **options,
    }
    if query_dtype is not None:
        request["query_dtype"] = getattr(torch, DTYPES[query_dtype])
    return request


def _plan(
    batch: Batch,
    heads: tuple[int, int],
    head_dim: int,
    page_size: int,
    q_dtype: str,
    kv_dtype: str,
    causal: bool,
    window: int | None,
    fixed_split: int,
) -> tuple[dict[str, Any], list[str]]:
    """The plan in numbers, and its picture."""
    import torch

    import hpcattn
    from hpcattn import _introspect

    group = hpcattn.AttentionGroup(
        num_q_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=head_dim,
        page_size=page_size,
        q_dtype=getattr(torch, DTYPES[q_dtype]),
        kv_dtype=getattr(torch, DTYPES[kv_dtype]),
        causal=causal,
        window=window,
    )
    plan = hpcattn.plan_attention(
        group,
        torch.tensor(batch.cu_seqlens_q(), dtype=torch.int32),
        torch.tensor(batch.kv_lens, dtype=torch.int32),
        fixed_split=fixed_split,
    )
    workers = torch.get_num_threads()
    parts = _introspect.plan_tasks(plan)
    taken, costs = schedule(parts.tasks, workers)
    summary = hpcattn.plan_summary(plan)
    total = sum(costs)
    numbers = {
        **{key: summary[key] for key in summary if key != "group"},
        "workers": workers,
        "kernels": parts.kernels,
        # 1: all workers end together. It is what the busiest worker does over an equal share.
        "busiest_over_mean": max(costs) * workers / total if total else 1.0,
        "plan_bytes": 4 * plan.numel(),
        "partial_bytes": parts.partial_bytes,
        "scratch_bytes": parts.scratch_bytes_per_thread * workers,
    }
    return numbers, _picture(taken, costs)


def _show_plan(numbers: dict[str, Any], picture: list[str], tasks: bool) -> None:
    console = shell.out()
    kernels = ", ".join(f"{name} ({count})" for name, count in numbers["kernels"].items())
    workspace = numbers["plan_bytes"] + numbers["partial_bytes"] + numbers["scratch_bytes"]
    lines = [
        "",
        f"plan: {numbers['num_tasks']} tasks over {numbers['workers']} threads",
        f"  kernels: {kernels}",
        f"  split: {numbers['num_partials']} tasks give partial results, "
        f"{numbers['num_combines']} combines join them",
        f"  work: longest task {numbers['longest_task']} of {numbers['total_work']} "
        "(row, KV token) pairs; few rows count as more, since reading bounds them",
        f"  balance: busiest thread {numbers['busiest_over_mean']:.3f} times an equal share",
        f"  workspace: {workspace} bytes (plan {numbers['plan_bytes']}, "
        f"partials {numbers['partial_bytes']}, threads {numbers['scratch_bytes']})",
    ]
    if tasks:
        lines += ["", "tasks over threads, as wide as they cost, named by request:", *picture]
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def explain(
    batch: Annotated[
        str,
        typer.Option(help="COUNTxTOKENS[:NEW] joined by +: 16x2K, 1x128K+31x4K, 4x8K:512."),
    ] = "16x2K",
    rows: Annotated[
        str,
        typer.Option(help="New query tokens of a request whose term names none; 'all': a prefill."),
    ] = "1",
    heads: Annotated[str, typer.Option(help="Query heads:KV heads.")] = "32:8",
    head_dim: Annotated[int, typer.Option(help="Size of a head.")] = 128,
    page_size: Annotated[int, typer.Option(help="Tokens of a page.")] = 16,
    dtype: Annotated[str, typer.Option(help="Of the model's activations.")] = "bfloat16",
    query_dtype: Annotated[
        str | None, typer.Option(help="Of q where it differs: float8_e4m3.")
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(help="Of the KV cache where it differs: float8_e4m3, float8_e5m2.")
    ] = None,
    window: Annotated[str | None, typer.Option(help="Tokens of a sliding window, as 4K.")] = None,
    softcap: Annotated[float, typer.Option(help="Soft cap of logits; 0: none.")] = 0.0,
    alibi: Annotated[bool, typer.Option("--alibi", help="With ALiBi slopes.")] = False,
    sinks: Annotated[bool, typer.Option("--sinks", help="With sinks.")] = False,
    non_causal: Annotated[
        bool, typer.Option("--non-causal", help="Tokens see those after them too.")
    ] = False,
    fp8_output: Annotated[
        bool, typer.Option("--fp8-output", help="With the output quantised to float8_e4m3.")
    ] = False,
    per_head_kv_scales: Annotated[
        bool, typer.Option("--per-head-kv-scales", help="With a K and a V scale for each KV head.")
    ] = False,
    layout: Annotated[str, typer.Option(help="Of the KV cache: NHD, HND or packed.")] = "NHD",
    fixed_split: Annotated[
        str, typer.Option(help="KV tokens of a split whatever the batch; 0: as balances best.")
    ] = "0",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    capability: Annotated[
        str | None,
        typer.Option(help="Compute capability of the GPU, as 9.0; by default of the one here."),
    ] = None,
    arch: Annotated[
        str | None, typer.Option(help="The same as an architecture, as sm_90a.")
    ] = None,
    multiprocessors: Annotated[
        int, typer.Option(help="Of the GPU to plan for; 0: of the one here, or a usual one.")
    ] = 0,
    threads: Annotated[int, typer.Option(help="Threads to plan for; 0: as torch has them.")] = 0,
    tasks: Annotated[
        bool, typer.Option("--tasks", help="Draw the tasks over the threads.")
    ] = False,
    json_output: shell.JsonOption = False,
) -> None:
    """Show which kernel answers a shape and why, and how its batch is cut into tasks.

    Exits with 1 where no kernel answers; every reason is printed.
    """
    geometry = parse_heads(heads)
    steps = parse_batch(batch, None if rows == "all" else parse_count(rows))
    model, cache = parse_dtype(dtype), parse_dtype(kv_dtype) if kv_dtype is not None else None
    query = parse_dtype(query_dtype) if query_dtype is not None else None
    span = parse_count(window) if window is not None else None
    split = parse_count(fixed_split)
    if threads < 0:
        raise ValueError("--threads must be 0 or more")
    if multiprocessors < 0:
        raise ValueError("--multiprocessors must be 0 or more")
    if steps.num_tokens == 0:
        raise ValueError(f"--batch {batch}: no request has a new query token; nothing would run")
    if not 0 <= head_dim <= 1 << 20 or not 0 <= page_size <= 1 << 20:
        raise ValueError("--head-dim and --page-size: expected 0 to 1M")

    import torch

    from hpcattn import _introspect

    gpu = (
        explain_gpu.place(explain_gpu.parse_capability(capability, arch), multiprocessors)
        if device == "cuda"
        else None
    )
    request = _request(
        steps,
        geometry,
        head_dim,
        page_size,
        model,
        query,
        "auto" if cache is None or cache == model else cache,
        device=device,
        layout=layout,
        capability=gpu.capability if gpu else explain_gpu.parse_capability(capability, arch),
        window=span,
        softcap=softcap,
        alibi=alibi,
        sinks=sinks,
        non_causal=non_causal,
        per_head_kv_scales=per_head_kv_scales,
        fused_fp8_output=fp8_output,
    )
    answers = {
        count: _introspect.explain(count, **request) for count in sorted({*steps.rows} - {0})
    }
    refusals = list(dict.fromkeys(text for a in answers.values() for text in a.refusals))
    report: dict[str, Any] = {
        "schema": 1,
        "batch": batch,
        "num_requests": steps.num_requests,
        "num_tokens": steps.num_tokens,
        "device": device,
        "supported": not refusals,
        "refusals": refusals,
        "kernels": [
            {"query_tokens": count, "kernel": answer.kernel, "reason": answer.reason}
            for count, answer in answers.items()
        ],
        "plan": None,
        "gpu": None,
        "names_no_gpu": gpu is not None and gpu.capability is None,
    }
    picture: list[str] = []
    if not refusals and device == "cpu":
        before = torch.get_num_threads()
        torch.set_num_threads(threads or before)
        try:
            report["plan"], picture = _plan(
                steps,
                geometry,
                head_dim,
                page_size,
                query or model,
                cache or model,
                not non_causal,
                span,
                split,
            )
        finally:
            torch.set_num_threads(before)
    elif not refusals and gpu is not None:
        group = {
            "num_q_heads": geometry[0],
            "num_kv_heads": geometry[1],
            "head_dim": head_dim,
            "page_size": page_size,
            "q_dtype": getattr(torch, DTYPES[query or model]),
            "kv_dtype": getattr(torch, DTYPES[cache or model]),
        }
        kernels = _introspect.call_kernels(
            **group,
            softcap=softcap > 0,
            alibi=alibi,
            fixed_split=split,
            rows=math.ceil(steps.num_tokens * (geometry[0] // geometry[1]) / steps.num_requests),
            capability=gpu.capability,
        )
        report["gpu"] = gpu.report(kernels)
        mask = {"causal": not non_causal, "window": span}
        report["plan"], taken, costs = explain_gpu.plan(
            steps, gpu, group | mask, split, kernels["attention"]
        )
        picture = _picture(taken, costs)
    if json_output:
        shell.print_json(report)
    else:
        _show(report, picture, tasks)
    if refusals:
        raise typer.Exit(shell.EXIT_FAILED)


def _show(report: dict[str, Any], picture: list[str], tasks: bool) -> None:
    console = shell.out()
    console.print(
        f"{report['num_requests']} requests, {report['num_tokens']} query tokens, "
        f"on {report['device']}"
    )
    if report["refusals"]:
        console.print("no kernel answers:")
        for reason in report["refusals"]:
            console.print(Text(f"  - {reason}"), soft_wrap=True)
        if report["names_no_gpu"]:
            console.print("name the GPU to explain for: --arch sm_90a, or --capability 9.0")
        return
    for row in report["kernels"]:
        tokens = "token" if row["query_tokens"] == 1 else "tokens"
        line = f"{row['query_tokens']} new {tokens} a request: {row['kernel']}"
        console.print(Text(line, style="bold"), soft_wrap=True)
        console.print(Text(f"  {row['reason']}"), soft_wrap=True)
    if report["gpu"] is not None:
        explain_gpu.show(report["gpu"], report["plan"], picture, tasks)
    elif report["plan"] is not None:
        _show_plan(report["plan"], picture, tasks)
