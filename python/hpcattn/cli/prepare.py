# SPDX-License-Identifier: Apache-2.0
"""`hpcattn prepare`: compiles or loads a model's kernels before it serves."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from hpcattn.bench.batch import parse_heads
from hpcattn.cli import shell

_DTYPES = ("bfloat16", "float16")


def prepare(
    model: Annotated[
        Path | None,
        typer.Argument(help="A Hugging Face folder; its config.json says heads, dims and dtype."),
    ] = None,
    heads: Annotated[str | None, typer.Option(help="Query and KV heads, as 32:8.")] = None,
    head_dim: Annotated[int | None, typer.Option(help="Size of a head.")] = None,
    dtype: Annotated[str | None, typer.Option(help="bfloat16 or float16.")] = None,
    kv_dtype: Annotated[
        str, typer.Option(help="Of the KV cache: auto, fp8_e4m3 or fp8_e5m2.")
    ] = "auto",
    q_fp8: Annotated[
        bool, typer.Option("--q-fp8", help="The fused prologue quantises q to float8_e4m3.")
    ] = False,
    page_size: Annotated[int, typer.Option(help="Tokens of a page of the KV cache.")] = 16,
    softcap: Annotated[bool, typer.Option("--softcap", help="Scores are capped.")] = False,
    alibi: Annotated[bool, typer.Option("--alibi", help="ALiBi slopes are added.")] = False,
    norm: Annotated[
        str, typer.Option(help="Of rope_norm_store_kv: none, rope_then_norm, norm_then_rope.")
    ] = "none",
    device: Annotated[str | None, typer.Option(help="The GPU to load on, as cuda:0.")] = None,
    arch: Annotated[
        str | None, typer.Option(help="Without a GPU: fill the cache for sm_90a, sm_80, ...")
    ] = None,
    common: Annotated[
        bool, typer.Option("--common", help="The kernels that ship with the package.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(help="With --arch: a folder to ship the kernels in, instead of the cache."),
    ] = None,
    json_output: shell.JsonOption = False,
) -> None:
    """Compiles or loads all kernels that a model's calls on a GPU can take."""
    import torch

    from hpcattn import _prepare as engine
    from hpcattn.cli.progress import PrepareBar

    options = dict(locals())
    where = _where(engine, device, arch, output)
    variants = _common(engine, where) if common else _described(options, where, engine, torch)
    bar = PrepareBar(quiet=json_output)
    with bar as show:
        report = engine.make_ready(variants, progress=show, **where)
    if json_output:
        shell.print_json({**asdict(report), "compiled": report.compiled, "where": where})
        return
    place = f"cuda:{where['device']}" if "device" in where else where["arch"]
    shell.out().print(
        f"{len(report.kernels)} kernels ready for {place} in {report.seconds:.1f} s: "
        f"{report.compiled} compiled, {len(report.kernels) - report.compiled} found"
        + (f"; {report.bytes / 1e6:.2f} MB in {output}" if output is not None else "")
    )


def _where(
    engine: Any, device: str | None, arch: str | None, output: Path | None
) -> dict[str, Any]:
    if arch is not None:
        if device is not None:
            raise ValueError("--device and --arch are given, expected one of them.")
        return {"arch": arch, **({} if output is None else {"folder": str(output.absolute())})}
    if output is not None:
        raise ValueError("--output is given without --arch, expected both.")
    return {"device": engine._device_index(device)}


def _common(engine: Any, where: dict[str, Any]) -> list[dict[str, Any]]:
    shipped: list[dict[str, Any]] = engine.shipped_kernels(where.get("arch", "sm_90a"))
    return shipped


def _described(
    options: dict[str, Any], where: dict[str, Any], engine: Any, torch: Any
) -> list[dict[str, Any]]:
    """The kernels of the model that the options describe."""
    described: dict[str, Any] = {}
    if options["model"] is not None:
        described = _of_folder(options["model"], engine, torch)
    if options["heads"] is not None:
        described["num_q_heads"], described["num_kv_heads"] = parse_heads(options["heads"])
    if options["head_dim"] is not None:
        described["head_dim"] = options["head_dim"]
    if options["dtype"] is not None:
        if options["dtype"] not in _DTYPES:
            raise ValueError(f"--dtype is {options['dtype']!r}, expected {' or '.join(_DTYPES)}.")
        described["dtype"] = getattr(torch, options["dtype"])
    if options["softcap"]:
        described["softcap"] = 1.0
    for name, option in (("num_q_heads", "heads"), ("head_dim", "head-dim"), ("dtype", "dtype")):
        if name not in described:
            raise ValueError(f"--{option} is not given. Give it, a model's folder, or --common.")
    softcap = described.pop("softcap", 0.0) > 0
    variants: list[dict[str, Any]] = engine.model_kernels(
        **described,
        q_dtype=torch.float8_e4m3fn if options["q_fp8"] else None,
        kv_cache_dtype=options["kv_dtype"],
        page_size=options["page_size"],
        softcap=softcap,
        alibi=options["alibi"],
        norm_policy=options["norm"],
        norm_scope="head",
        **{name: where[name] for name in ("device", "arch") if name in where},
    )
    return variants


def _of_folder(folder: Path, engine: Any, torch: Any) -> dict[str, Any]:
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} has no config.json, expected a Hugging Face folder.")
    described: dict[str, Any] = engine._of_transformers(AutoConfig.from_pretrained(folder))
    if described.get("dtype") == torch.float32:
        described["dtype"] = torch.bfloat16  # a GPU's attention takes 16 bits
    return described
