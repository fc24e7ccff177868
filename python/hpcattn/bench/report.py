# SPDX-License-Identifier: Apache-2.0
"""A bench report as tables for people, and its way to and from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
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
    "store_kv": "KV write alone",
    "plan": "The plan of a step, made once for all its layers",
}


@dataclass(frozen=True)
class _Units:
    """What rates and times are shown in; "G" and "ms" on a CPU, "T" and "us" on a GPU."""

    prefix: str
    scale: float
    time: str
    per_second: float

    def rate(self, row: Mapping[str, Any], key: str) -> str:
        """A rate, or "" where the row has none."""
        return f"{row[key] * self.scale:.{2 if self.prefix == 'T' else 1}f}" if key in row else ""


_CPU_UNITS = _Units("G", 1e-9, "ms", 1e3)
_GPU_UNITS = _Units("T", 1e-12, "us", 1e6)


def _gpu(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """The GPU that was measured; None: the CPU was. A test's may be empty."""
    found: dict[str, Any] | None = report["machine"].get("gpu")
    return found


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


def _ratio(case: Mapping[str, Any], name: str) -> str:
    value = case["speedups"].get(name)
    if value is None:
        return ""
    mark = " *" if name == case.get("sdpa_form") else ""
    return f"{value:.2f}{mark}"


def _share(row: Mapping[str, Any], key: str) -> str:
    return f"{100 * row[key]:.0f} %" if key in row else ""


def _table(kind: str, cases: list[Mapping[str, Any]], units: _Units) -> Table:
    table = Table(title=_TITLES.get(kind, kind), title_justify="left", title_style="bold")
    table.add_column("case", overflow="fold")
    table.add_column("what", overflow="fold")
    rows_of_kind = [row for case in cases for row in case["contenders"].values()]

    def shown(key: str) -> bool:
        return any(key in row for row in rows_of_kind)

    on_gpu = units is _GPU_UNITS
    # Where attention is bound by products, the bytes of K and V say nothing.
    attention = shown("flops_per_s")
    read = kind == "decode" or (on_gpu and kind == "chunk")
    bandwidth = read or (not attention and shown("bytes_per_s"))
    headings = [f"median {units.time}", f"min {units.time}", "spread"]
    headings += [f"{units.prefix}B/s"] * bandwidth + ["of read"] * read
    headings += [f"{units.prefix}FLOP/s"] * attention
    headings += ["of product"] * (shown("share_of_gemm") and not read)
    for heading in (*headings, "time / ours"):
        table.add_column(heading, justify="right")
    for case in cases:
        rows = dict(case["contenders"])
        if "read" in case:
            rows[PLAIN_READ] = case["read"]
        for index, (name, row) in enumerate(rows.items()):
            cells = [
                case["name"] if index == 0 else "",
                name,
                f"{units.per_second * row['median_s']:.{1 if on_gpu else 3}f}",
                f"{units.per_second * row['min_s']:.{1 if on_gpu else 3}f}",
                f"{100 * row['spread']:.0f} %",
            ]
            if bandwidth:
                cells.append(units.rate(row, "bytes_per_s"))
            if read:
                cells.append(_share(row, "share_of_read"))
            if attention:
                cells.append(units.rate(row, "flops_per_s"))
            if "of product" in headings:
                cells.append(_share(row, "share_of_gemm"))
            cells.append(_ratio(case, name))
            last = index == len(rows) - 1
            table.add_row(*cells, style="bold" if index == 0 else None, end_section=last)
    return table


def _gpu_head(report: Mapping[str, Any], gpu: Mapping[str, Any]) -> str:
    ceilings = report["ceilings"]
    packages = ", ".join(f"{name} {value}" for name, value in report["versions"].items() if value)
    gemm = ceilings["gemm_flops_per_s"]["bfloat16"] / 1e12
    name = report["device"]
    if gpu:
        name = (
            f"{gpu['name']} ({report['device']}, {gpu['arch']}), {gpu['multiprocessors']} "
            f"multiprocessors, {gpu['memory_bytes'] / 2**30:.0f} GiB, L2 "
            f"{gpu['l2_bytes'] / 2**20:.0f} MiB\n"
            f"driver: {gpu['driver'] or 'version unknown'}, CUDA {gpu['driver_cuda']}"
        )
    return (
        f"{name}\n{packages}, {report['date']}\n"
        f"read bandwidth {ceilings['read_bytes_per_s'] / 1e12:.2f} TB/s ({ceilings['read_form']}); "
        f"matrix products {gemm:.0f} TFLOP/s bfloat16"
    )


def _head(report: Mapping[str, Any]) -> str:
    gpu = _gpu(report)
    if gpu is not None:
        return _gpu_head(report, gpu)
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
    on_gpu = _gpu(report) is not None
    units = _GPU_UNITS if on_gpu else _CPU_UNITS
    measured = [case for case in report["cases"] if "contenders" in case]
    for kind in _TITLES:
        cases = [case for case in measured if case["kind"] == kind]
        if cases:
            console.print()
            console.print(_table(kind, cases, units))
    operators = {
        case["kind"] if case["kind"] in report["notes"] else "attention" for case in measured
    }
    for operator in sorted(operators):
        console.print()
        for name, note in report["notes"][operator].items():
            console.print(Text(f"{name}: {note}."))
    if "attention" in operators and not on_gpu:
        if any("read" in case for case in measured):
            size = report["ceilings"]["read_buffer_bytes"] >> 20
            note = f"{PLAIN_READ}: of {size} MiB, in the same turns; shares are of the best read."
            console.print(Text(note))
        console.print(Text("* the faster of the two forms of SDPA, which the bars are about."))
    caches = (
        "Times are a layer's, from a CUDA graph of several layers with tensors of their own, "
        "together larger than L2."
        if on_gpu
        else "Caches are emptied before every timed call."
    )
    console.print(
        Text(
            f"{units.prefix}B/s: bytes of K and V that some row sees, over the median. "
            f"{units.prefix}FLOP/s: visible pairs alone. Spread: the middle half of the times over "
            f"their median. {caches}"
        )
    )
    for case in report["cases"]:
        for name, reason in case.get("skipped", {}).items():
            console.print(Text(f"left out: {case['name']}, {name}: {reason}."))
    if report["verdicts"]:
        console.print()
    for verdict in report["verdicts"]:
        console.print(Text(verdict["line"], style="green" if verdict["met"] else "bold red"))
