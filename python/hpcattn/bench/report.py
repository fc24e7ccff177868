# SPDX-License-Identifier: Apache-2.0
"""A bench report as tables for people, and its way to and from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpcattn.bench.runner import SCHEMA

# The read that a decode case took in turns with its contenders, of a buffer of another size.
PLAIN_READ = "a plain read"

_TITLES = {
    "decode": "Decode: a new token a request, over pages",
    "prefill": "Prefill: all tokens new, causal",
    "chunk": "Chunks: several new tokens a request",
    "rope_norm_store_kv": "Fused QK-norm, RoPE and KV write",
}


def save(report: Mapping[str, Any], path: Path) -> None:
    """Writes a report as JSON, folders made as needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def load(path: Path) -> dict[str, Any]:
    """Reads a report that `save` wrote.

    Raises:
        ValueError: The file is no such report, or one of another schema.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}. Give a file that --output wrote.") from error
    except ValueError as error:
        raise ValueError(f"{path}: not JSON. Give a file that --output wrote.") from error
    schema = report.get("schema") if isinstance(report, dict) else None
    if schema != SCHEMA:
        raise ValueError(
            f"{path}: schema is {schema!r}, expected {SCHEMA}. Measure again, or use the hpcattn "
            "that wrote it."
        )
    return dict(report)


def _rate(row: Mapping[str, Any], key: str) -> str:
    return f"{row[key] / 1e9:.1f}" if key in row else ""


def _ratio(case: Mapping[str, Any], name: str) -> str:
    value = case["speedups"].get(name)
    if value is None:
        return ""
    mark = " *" if name == case.get("sdpa_form") else ""
    return f"{value:.2f}{mark}"


def _table(kind: str, cases: list[Mapping[str, Any]]) -> Table:
    table = Table(title=_TITLES.get(kind, kind), title_justify="left", title_style="bold")
    table.add_column("case", overflow="fold")
    table.add_column("what", overflow="fold")
    attention, bandwidth = kind != "rope_norm_store_kv", kind in ("decode", "rope_norm_store_kv")
    for heading in ("median ms", "min ms", "spread", *(["GB/s"] if bandwidth else [])):
        table.add_column(heading, justify="right")
    if kind == "decode":
        table.add_column("of read", justify="right")
    if attention:
        table.add_column("GFLOP/s", justify="right")
    table.add_column("time / ours", justify="right")
    for case in cases:
        rows = dict(case["contenders"])
        if "read" in case:
            rows[PLAIN_READ] = case["read"]
        for index, (name, row) in enumerate(rows.items()):
            cells = [
                case["name"] if index == 0 else "",
                name,
                f"{1e3 * row['median_s']:.3f}",
                f"{1e3 * row['min_s']:.3f}",
                f"{100 * row['spread']:.0f} %",
            ]
            if bandwidth:
                cells.append(_rate(row, "bytes_per_s"))
            if kind == "decode":
                cells.append(f"{100 * row['share_of_read']:.0f} %")
            if attention:
                cells.append(_rate(row, "flops_per_s"))
            cells.append(_ratio(case, name))
            last = index == len(rows) - 1
            table.add_row(*cells, style="bold" if index == 0 else None, end_section=last)
    return table


def _head(report: Mapping[str, Any]) -> str:
    machine, versions, ceilings = report["machine"], report["versions"], report["ceilings"]
    gemm = ", ".join(
        f"{rate / 1e9:.0f} GFLOP/s {name}" for name, rate in ceilings["gemm_flops_per_s"].items()
    )
    packages = ", ".join(f"{name} {value}" for name, value in versions.items() if value)
    return (
        f"{machine['cpu']}, {machine['cores']} cores, "
        f"{report['settings']['threads']} threads each\n"
        f"{' '.join(machine['isa'])}\n"
        f"{packages}, {report['date']}\n"
        f"read bandwidth {ceilings['read_bytes_per_s'] / 1e9:.1f} GB/s ({ceilings['read_form']}); "
        f"matrix products {gemm}"
    )


def show(report: Mapping[str, Any], console: Console) -> None:
    """Prints the machine, a table for each kind of case, what was left out, and the verdicts."""
    console.print(Text(_head(report)))
    measured = [case for case in report["cases"] if "contenders" in case]
    for kind in _TITLES:
        cases = [case for case in measured if case["kind"] == kind]
        if cases:
            console.print()
            console.print(_table(kind, cases))
    operators = {
        "rope_norm_store_kv" if "rope" in case["kind"] else "attention" for case in measured
    }
    for operator in sorted(operators):
        console.print()
        for name, note in report["notes"][operator].items():
            console.print(Text(f"{name}: {note}."))
    if "attention" in operators:
        if any("read" in case for case in measured):
            size = report["ceilings"]["read_buffer_bytes"] >> 20
            note = f"{PLAIN_READ}: of {size} MiB, in the same turns; shares are of the best read."
            console.print(Text(note))
        console.print(Text("* the faster of the two forms of SDPA, which the bars are about."))
    console.print(
        Text(
            "GB/s: bytes of K and V that some row sees, over the median. GFLOP/s: visible pairs "
            "alone. Spread: the middle half of the times over their median. Caches are emptied "
            "before every timed call."
        )
    )
    for case in report["cases"]:
        for name, reason in case.get("skipped", {}).items():
            console.print(Text(f"left out: {case['name']}, {name}: {reason}."))
    if report["verdicts"]:
        console.print()
    for verdict in report["verdicts"]:
        console.print(Text(verdict["line"], style="green" if verdict["met"] else "bold red"))
