# SPDX-License-Identifier: Apache-2.0
"""Batches as text: `16x2K`, `1x128K+31x4K`, `1x2K:2K`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TERM = re.compile(r"^(?:(\d+)x)?(\d+[KM]?)(?::(\d+[KM]?))?$", re.IGNORECASE)
_UNITS = {"K": 1024, "M": 1024 * 1024}

# Lengths travel as int32; a sum beyond it is a typing error rather than a batch.
_LIMIT = 2**31 - 1


def parse_count(text: str) -> int:
    """`2K` -> 2048. Raises ValueError for anything but a whole number with K or M."""
    match = re.fullmatch(r"(\d+)([KM]?)", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a count. Write a whole number, as in 4096 or 4K.")
    return int(match[1]) * _UNITS.get(match[2].upper(), 1)


def show_count(value: int) -> str:
    """2048 -> `2K`; 1000 -> `1000`."""
    for unit in ("M", "K"):
        if value and value % _UNITS[unit] == 0:
            return f"{value // _UNITS[unit]}{unit}"
    return str(value)


def parse_heads(text: str) -> tuple[int, int]:
    """`32:8` -> (32, 8), query heads and KV heads."""
    match = re.fullmatch(r"(\d+):(\d+)", text.strip())
    if match is None:
        raise ValueError(f"heads {text!r} can not be read. Write query heads:KV heads, as in 32:8.")
    return int(match[1]), int(match[2])


@dataclass(frozen=True)
class Batch:
    """Requests of a step: KV tokens of each (the new ones included), and its new query tokens."""

    kv_lens: tuple[int, ...]
    rows: tuple[int, ...]
    text: str

    @property
    def num_requests(self) -> int:
        """Requests of the step."""
        return len(self.kv_lens)

    @property
    def num_tokens(self) -> int:
        """Query tokens of the step."""
        return sum(self.rows)

    def cu_seqlens_q(self) -> list[int]:
        """Where each request's query tokens begin, and their end."""
        starts = [0]
        for count in self.rows:
            starts.append(starts[-1] + count)
        return starts

    def pairs(self, *, causal: bool = True, window: int | None = None) -> int:
        """The (query token, KV token) pairs that a mask leaves visible, over all requests."""
        total = 0
        for kv_len, rows in zip(self.kv_lens, self.rows, strict=True):
            for row in range(rows):
                position = kv_len - rows + row
                first = 0 if window is None else max(0, position - window + 1)
                last = position if causal else kv_len - 1
                if window is not None and not causal:
                    last = min(last, position + window - 1)
                total += max(0, last - first + 1)
        return total


def parse_batch(text: str, rows: int | None = 1) -> Batch:
    """Reads `COUNTxKV[:ROWS]` terms joined by `+`; K and M are 1024 and 1024 squared.

    Args:
        text: For instance `16x2K` (16 requests of 2048 KV tokens), `1x128K+31x4K`, or `1x2K:2K`
            (one request whose 2048 tokens are all new: a prefill).
        rows: New query tokens of a request where its term names none; None: all of its KV tokens.

    Returns:
        The batch.

    Raises:
        ValueError: A term can not be read, or asks for more new tokens than KV tokens.
    """
    kv_lens: list[int] = []
    row_counts: list[int] = []
    for term in text.split("+"):
        match = _TERM.match(term.strip())
        if match is None:
            raise ValueError(
                f"batch {text!r}: {term.strip()!r} can not be read. Write COUNTxTOKENS or "
                "COUNTxTOKENS:NEW, joined by +, as in 16x2K, 1x128K+31x4K or 4x8K:512."
            )
        count = int(match[1]) if match[1] else 1
        kv_len = parse_count(match[2])
        new = parse_count(match[3]) if match[3] else (kv_len if rows is None else rows)
        if count == 0:
            raise ValueError(f"batch {text!r}: {term.strip()!r} has no request. Write 1x or more.")
        if new > kv_len:
            raise ValueError(
                f"batch {text!r}: {new} new query tokens in a request of {kv_len} KV tokens. The "
                "KV tokens include the new ones: give at least as many."
            )
        if count > 1 << 20 or count * kv_len > _LIMIT:
            raise ValueError(
                f"batch {text!r}: {term.strip()!r} is more than this command plans for "
                f"({1 << 20} requests, {_LIMIT} KV tokens)."
            )
        kv_lens += [kv_len] * count
        row_counts += [new] * count
    return Batch(tuple(kv_lens), tuple(row_counts), text)
