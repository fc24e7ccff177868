# SPDX-License-Identifier: Apache-2.0
"""Draws architecture.svg: the floors of the library and how a step's values flow.

python3 docs/figures/architecture.py > docs/figures/architecture.svg
"""

from __future__ import annotations

from html import escape

WIDTH, HEIGHT = 960, 620
FONT = "font-family='DejaVu Sans, Verdana, sans-serif'"

# x, y, width, height, title, lines, fill
BOXES = [
    (
        20,
        20,
        300,
        84,
        "integrations",
        ["Transformers attention function", "command line"],
        "#e8f1fb",
    ),
    (
        20,
        134,
        300,
        84,
        "torch ops",
        ["torch.ops.hpcattn.*, stable ABI", "fake implementations"],
        "#e8f1fb",
    ),
    (350, 20, 590, 198, "public C++ API: include/hpcattn/", [], "#f4f4f4"),
    (
        370,
        60,
        262,
        140,
        "backend",
        [
            "HpcAttentionBackend: capabilities",
            "HpcAttnMetadataBuilder",
            "HpcAttentionImpl, HpcRopeNorm",
            "StepWorkspace",
        ],
        "#fdf3e1",
    ),
    (
        658,
        60,
        262,
        140,
        "operators",
        [
            "paged_attention, packed_attention",
            "rope_norm_store_kv, store_kv",
            "merge_partials",
            "make_plan",
        ],
        "#fdf3e1",
    ),
    (
        350,
        262,
        590,
        84,
        "src/ops: every check, then dispatch",
        [
            "shapes, dtypes, strides, values, overlap: all before anything is written",
        ],
        "#e9f6ec",
    ),
    (
        350,
        390,
        280,
        100,
        "src/plan",
        [
            "batch cut into tasks by cost",
            "KV splits and their combines",
        ],
        "#e9f6ec",
    ),
    (
        660,
        390,
        280,
        100,
        "src/cpu",
        [
            "threads: one task at a time",
            "kernels: generic, AVX2, AVX-512",
        ],
        "#e9f6ec",
    ),
    (
        350,
        534,
        590,
        84,
        "src/common",
        [
            "Tensor (a view), messages, call counters, the thread pool or the caller's",
        ],
        "#f4f4f4",
    ),
    (
        20,
        262,
        300,
        180,
        "tests only",
        [
            "float64 reference, src/cpu/reference:",
            "plain loops from the formulas, shares",
            "no code with what it judges",
            "poison and guard pages, src/testing",
            "fuzz/: arguments of every operator",
            "examples/: an engine in small",
        ],
        "#fbeaea",
    ),
]

# from x, y to x, y, label, label x, label y
ARROWS = [
    (170, 104, 170, 134, "", 0, 0),
    (320, 176, 350, 176, "", 0, 0),
    (632, 120, 658, 120, "", 0, 0),
    (645, 218, 645, 262, "arguments", 655, 244),
    (490, 346, 490, 390, "cu_seqlens_q, kv_lens", 500, 372),
    (630, 440, 660, 440, "plan", 632, 432),
    (800, 346, 800, 390, "checked arguments", 810, 372),
]


def text(x: float, y: float, words: str, size: int = 13, weight: str = "normal") -> str:
    """One line of text, from its left end."""
    return (
        f"<text x='{x}' y='{y}' {FONT} font-size='{size}' font-weight='{weight}' fill='#222'>"
        f"{escape(words)}</text>"
    )


def svg() -> str:
    """The whole drawing."""
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' "
        f"width='{WIDTH}' height='{HEIGHT}' role='img' "
        "aria-label='Floors of hpcattn: integrations, torch ops, public API with backend and "
        "operators, checks, plan, CPU kernels'>",
        "<defs><marker id='tip' markerWidth='8' markerHeight='8' refX='7' refY='4' orient='auto'>"
        "<path d='M0,0 L8,4 L0,8 z' fill='#444'/></marker></defs>",
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='#fff'/>",
    ]
    for x, y, width, height, title, lines, fill in BOXES:
        parts.append(
            f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='6' fill='{fill}' "
            "stroke='#888'/>"
        )
        parts.append(text(x + 12, y + 24, title, size=15, weight="bold"))
        parts += [text(x + 12, y + 48 + 21 * i, line) for i, line in enumerate(lines)]
    for x1, y1, x2, y2, label, label_x, label_y in ARROWS:
        parts.append(
            f"<line x1='{x1}' y1='{y1}' x2='{x2}' y2='{y2}' stroke='#444' stroke-width='1.6' "
            "marker-end='url(#tip)'/>"
        )
        if label:
            parts.append(text(label_x, label_y, label, size=12))
    parts.append("</svg>")
    return "\n".join(parts)


if __name__ == "__main__":
    print(svg())
