# SPDX-License-Identifier: Apache-2.0
"""Figures of a bench report. matplotlib is imported when one is drawn, and not before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SUFFIXES = (".png", ".svg", ".pdf")
# Colours that differ in lightness too, so that they tell apart in grey.
_COLOURS = ("#0b3c6f", "#d1600a", "#7a9a01", "#a83279", "#4fa3c7")
_MARKERS = ("o", "s", "^", "D", "v")


def check_plot_path(path: Path) -> None:
    """Refuses a file that no figure can be written to, before anything is measured.

    Raises:
        ValueError: The suffix is unknown.
        ModuleNotFoundError: matplotlib is missing.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"--plot {path}: expected a name that ends in {', '.join(_SUFFIXES)}")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "--plot needs matplotlib, which is not installed. pip install 'hpcattn[cli]'"
        ) from error


def _in_sweep(case: Mapping[str, Any], sweep: str) -> bool:
    return "contenders" in case and sweep in case.get("sweep", "").split(",")


def _curve_panel(
    axes: Axes, cases: list[Mapping[str, Any]], key: str, label: str, title: str
) -> None:
    """Median times over one parameter, a line a contender, and the floor that reading sets."""
    cases = sorted(cases, key=lambda case: case["params"][key])
    x = [case["params"][key] for case in cases]
    names = list(dict.fromkeys(name for case in cases for name in case["contenders"]))
    for index, name in enumerate(names):
        points = [
            (case["params"][key], 1e3 * case["contenders"][name]["median_s"])
            for case in cases
            if name in case["contenders"]
        ]
        axes.plot(
            [point[0] for point in points],
            [point[1] for point in points],
            marker=_MARKERS[index % len(_MARKERS)],
            color=_COLOURS[index % len(_COLOURS)],
            linewidth=2.4 if name == "hpcattn" else 1.2,
            label=name,
        )
    floor = [1e3 * case["read_floor_s"] for case in cases]
    axes.plot(
        x, floor, color="black", linestyle="--", linewidth=1, label="floor: K and V read once"
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(x, [str(value) for value in x])
    axes.minorticks_off()
    axes.set_xlabel(label)
    axes.set_ylabel("median time, ms")
    axes.set_title(title, fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _bar_panel(axes: Axes, cases: list[Mapping[str, Any]]) -> None:
    """Median times of every contender, a group of bars a case, and each case's floor."""
    labels, place = [], 0
    seen: dict[str, str] = {}
    for case in cases:
        for name, row in case["contenders"].items():
            fresh = name not in seen
            colour = seen.setdefault(name, _COLOURS[len(seen) % len(_COLOURS)])
            axes.barh(place, 1e3 * row["median_s"], color=colour, label=name if fresh else None)
            if "read_floor_s" in case:
                x = 1e3 * case["read_floor_s"]
                axes.plot([x, x], [place - 0.4, place + 0.4], color="black", linestyle="--")
            labels.append(
                (place, case["name"] if row is next(iter(case["contenders"].values())) else "")
            )
            place += 1
        place += 1
    axes.set_yticks([at for at, _ in labels], [text for _, text in labels])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("median time, ms (dashed: K and V read once)")
    axes.grid(alpha=0.3, axis="x")
    axes.legend(fontsize="small")


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Writes a figure: time against context and against batch where the run swept them.

    A run without a sweep gives bars of its cases.

    Args:
        report: A bench report.
        path: A .png, .svg or .pdf file; its folder is made as needed.

    Raises:
        ValueError: The suffix is unknown, or no case of the report was measured.
        ModuleNotFoundError: matplotlib is missing.
    """
    check_plot_path(path)
    import matplotlib as mpl

    mpl.use("Agg")  # files alone: no display is asked for
    import matplotlib.pyplot as plt

    measured = [case for case in report["cases"] if "contenders" in case]
    if not measured:
        raise ValueError("plot: the report holds no measured case")
    panels: list[Callable[[Axes], None]] = []
    for sweep, key, label in (
        ("context", "max_kv_len", "KV tokens of a request"),
        ("batch", "num_requests", "requests"),
    ):
        for dtype in ("float32", "bfloat16"):
            cases = [c for c in measured if _in_sweep(c, sweep) and c["params"]["dtype"] == dtype]
            if len(cases) < 2:
                continue
            first = cases[0]["params"]
            fixed = (
                f"{first['num_requests']} requests"
                if sweep == "context"
                else f"{first['max_kv_len']} KV tokens each"
            )
            title = f"decode, {dtype}, {fixed}"

            def panel(
                axes: Axes,
                cases: list[Mapping[str, Any]] = cases,
                key: str = key,
                label: str = label,
                title: str = title,
            ) -> None:
                _curve_panel(axes, cases, key, label, title)

            panels.append(panel)
    if not panels:
        panels.append(lambda axes: _bar_panel(axes, measured))
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    height = (
        4.6 if len(panels) > 1 else max(3.0, 0.28 * sum(len(c["contenders"]) + 1 for c in measured))
    )
    figure, grid = plt.subplots(
        rows, columns, figsize=(7 * columns, height * rows), squeeze=False, layout="constrained"
    )
    for index, axes in enumerate(grid.flat):
        if index < len(panels):
            panels[index](axes)
        else:
            axes.set_visible(False)
    machine, versions = report["machine"], report["versions"]
    gpu = machine.get("gpu") or {}
    where = gpu.get("name") or f"{machine['cpu']}, {report['settings']['threads']} threads"
    figure.suptitle(
        f"{where}, torch {versions['torch']}, "
        f"read bandwidth {report['ceilings']['read_bytes_per_s'] / 1e9:.0f} GB/s, "
        f"{report['date'][:10]}",
        fontsize="medium",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
