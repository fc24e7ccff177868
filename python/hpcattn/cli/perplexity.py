# SPDX-License-Identifier: Apache-2.0
"""`hpcattn perplexity`: what a KV cache in float8 costs a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from hpcattn.cli import shell

_BUILTIN = "smollm2-135m-instruct"


def perplexity(
    model: Annotated[
        str, typer.Option(help="A local Hugging Face folder, or the built-in model.")
    ] = _BUILTIN,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    dtype: Annotated[
        str | None,
        typer.Option(help="bfloat16, float16 or, on the CPU, float32. As for generate."),
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="A file to predict; by default a text of 540 tokens.")
    ] = None,
    json_output: shell.JsonOption = False,
) -> None:
    """Perplexity of a model on a text, with K and V stored in its own dtype and in float8."""
    import torch

    from hpcattn import models
    from hpcattn import perplexity as engine

    place = models.parse_device(device)
    dtype = dtype or models.default_dtype(place)
    words = engine.TEXT if text is None else text.read_text(encoding="utf-8")
    loaded = models.load(
        model, dtype=models.parse_dtype(dtype), device=place, note=shell.err().print
    )
    caches = {dtype: None, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
    rows: list[dict[str, Any]] = []
    for name, kv_dtype in caches.items():
        value = engine.perplexity(loaded, words, kv_cache_dtype=kv_dtype)
        own = rows[0]["perplexity"] if rows else value
        rows.append({"kv_cache": name, "perplexity": value, "change": value / own - 1})
    if json_output:
        shell.print_json({"model": model, "device": str(place), "dtype": dtype, "rows": rows})
        return
    shell.out().print(f"{model}, {dtype} on {place}")
    table = Table("KV cache", "perplexity", "change")
    for row in rows:
        table.add_row(row["kv_cache"], f"{row['perplexity']:.3f}", f"{row['change']:+.2%}")
    shell.out().print(table)
