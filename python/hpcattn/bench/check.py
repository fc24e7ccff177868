# SPDX-License-Identifier: Apache-2.0
"""Our attention against float64, element by element, before anything is timed."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from hpcattn.bench.attention import AttentionBench

# (row, KV token) pairs that a check computes in float64: all of the standard shapes, a sample of
# the rows of larger ones, so that checking never takes longer than measuring.
_PAIR_BUDGET = 1 << 22


@dataclass(frozen=True)
class CheckResult:
    """How an answer compared with the reference."""

    rows_checked: int
    rows: int
    worst_error: float
    worst_share_of_bound: float

    def to_dict(self) -> dict[str, float | int]:
        """For a JSON report."""
        return asdict(self)


def compare(name: str, got: torch.Tensor, want: torch.Tensor, bound: torch.Tensor) -> float:
    """The largest error as a share of its bound.

    Args:
        name: What is compared, for the message.
        got: The answer.
        want: The reference, float64.
        bound: The largest error allowed, element by element.

    Returns:
        The largest error / bound.

    Raises:
        RuntimeError: An element lies outside its bound, or is NaN.
    """
    share = (got.double() - want).abs() / bound
    share = torch.where(torch.isnan(share), torch.full_like(share, math.inf), share)
    worst = int(share.argmax())
    if float(share.flatten()[worst]) > 1.0:
        place = [int(x) for x in torch.unravel_index(torch.tensor(worst), share.shape)]
        raise RuntimeError(
            f"{name}: wrong at {place}: {float(got.flatten()[worst])!r}, expected "
            f"{float(want.flatten()[worst])!r} within {float(bound.flatten()[worst]):.3g}. Nothing "
            "was timed. Please report it with the command that showed it."
        )
    return float(share.flatten()[worst])


def check_rows(bench: AttentionBench, out: torch.Tensor) -> CheckResult:
    """Compares `out` with softmax attention in float64.

    The bound of an element: its own rounding, and that of the probabilities (which a kernel may
    hold in q's dtype) times the magnitudes that it sums: eps |o| + 2 eps sum_j p_j |v_j|.
    """
    case = bench.case
    pairs = case.batch.pairs(window=case.window)
    step = max(1, -(-pairs // _PAIR_BUDGET))
    eps = max(torch.finfo(out.dtype).eps, 8 * torch.finfo(torch.float32).eps)
    starts = case.batch.cu_seqlens_q()
    checked, worst_error, worst_share = 0, 0.0, 0.0
    for index, rows in enumerate(case.batch.rows):
        if rows == 0:
            continue
        q, k, v = bench.request(index)
        picked = sorted({*range(0, rows, step), rows - 1})
        position = torch.tensor(picked, device=q.device)[:, None] + (k.shape[0] - rows)
        column = torch.arange(k.shape[0], device=q.device)[None, :]
        visible = column <= position
        if case.window is not None:
            visible &= column > position - case.window
        got = out[starts[index] : starts[index + 1]][picked]
        for head in range(case.heads.num_q_heads):
            kv_head = head // case.heads.group
            scores = (q[picked, head] @ k[:, kv_head].T) * bench.scale
            p = torch.softmax(scores.masked_fill(~visible, -math.inf), dim=1)
            want = p @ v[:, kv_head]
            bound = eps * want.abs() + 2 * eps * (p @ v[:, kv_head].abs())
            name = f"{case.name}, request {index}, query head {head}"
            worst_share = max(worst_share, compare(name, got[:, head], want, bound))
            error = (got[:, head].double() - want).abs().max()
            worst_error = max(worst_error, float(error))
        checked += len(picked)
    return CheckResult(checked, case.batch.num_tokens, worst_error, worst_share)
