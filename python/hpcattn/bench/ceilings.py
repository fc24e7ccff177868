# SPDX-License-Identifier: Apache-2.0
"""What this machine allows at most: the rate of reading memory and of multiplying matrices."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from hpcattn.bench import machine
from hpcattn.bench.timing import Effort, Timer, Timing, host_seconds, measure

_DEFAULT_READ_BYTES = 1 << 30
_GEMM_SIZE = 2048


class CacheFlusher:
    """Empties the CPU's caches of a case's data, by reading something larger than they are.

    In a model the weights and the other layers' KV pass between two calls for the same layer, so an
    operator finds its KV in memory. A benchmark that repeats one small call would find it in cache.
    """

    def __init__(self, device: torch.device | None = None, last_level: int = 0) -> None:
        """Allocates four times the last level's size, or 128 MiB where that is unknown.

        Args:
            device: Whose caches; None: the CPU.
            last_level: Bytes of the last level of them; 0: as the CPU has.
        """
        last = last_level or max(machine.cache_bytes().values(), default=32 << 20)
        words = max(4 * last, 64 << 20) // 8
        self._buffer = torch.ones(words, dtype=torch.int64, device=device)

    def __call__(self) -> None:
        """Reads the buffer."""
        self._buffer.sum()


class ReadBandwidth:
    """Reads of one large buffer, by several of torch's threaded reductions; the fastest counts."""

    def __init__(
        self, num_bytes: int = _DEFAULT_READ_BYTES, device: torch.device | None = None
    ) -> None:
        """Allocates and fills the buffer, so that its pages exist.

        Args:
            num_bytes: Its size; far more than the caches hold.
            device: Whose memory; None: the CPU's.
        """
        words = max(num_bytes // 8, 1024)
        self._words = torch.ones(words, dtype=torch.int64, device=device)
        floats = self._words.view(torch.float32)
        half = floats.numel() // 2
        # Each reads every byte once and writes next to nothing.
        self._forms: dict[str, Callable[[], object]] = {
            "torch.sum int64": lambda: self._words.sum(),
            "torch.sum float32": lambda: floats.sum(),
            "torch.dot float32": lambda: torch.dot(floats[:half], floats[half:]),
            "torch.amax float32": lambda: floats.amax(),
        }
        if device is not None and device.type == "cuda":
            # torch's reductions may fall short of the memory there: a copy moves as many bytes.
            self._forms["torch.copy_ of a half"] = lambda: floats[half:].copy_(floats[:half])
        self.form = "torch.sum int64"
        self.best_rate = 0.0

    @property
    def num_bytes(self) -> int:
        """Bytes that one call reads."""
        return self._words.numel() * 8

    def calibrate(self, effort: Effort, timer: Timer = host_seconds) -> dict[str, Timing]:
        """Times every form, and keeps the fastest for later calls."""
        timings = measure(self._forms, effort, timer=timer)
        self.form = min(timings, key=lambda name: timings[name].best)
        self.note(timings[self.form])
        return timings

    def note(self, timing: Timing) -> None:
        """Takes a further timing of this buffer's read into account: the best rate counts."""
        self.best_rate = max(self.best_rate, self.num_bytes / timing.best)

    def __call__(self) -> None:
        """Reads the buffer once, by the fastest form."""
        self._forms[self.form]()


def gemm_rates(
    effort: Effort,
    size: int = _GEMM_SIZE,
    *,
    dtypes: tuple[str, ...] = ("float32", "bfloat16"),
    device: torch.device | None = None,
    timer: Timer = host_seconds,
) -> dict[str, float]:
    """Floating-point operations a second of square matrix products, by dtype; the best of each."""
    operands = {
        name: torch.randn(size, size, device=device).to(getattr(torch, name)) for name in dtypes
    }
    calls = {name: functools.partial(torch.mm, a, a) for name, a in operands.items()}
    timings = measure(calls, effort, timer=timer)
    return {name: 2.0 * size**3 / timing.best for name, timing in timings.items()}
