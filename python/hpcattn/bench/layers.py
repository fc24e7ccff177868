# SPDX-License-Identifier: Apache-2.0
"""The calls of several layers as one thing to time: on a GPU a CUDA graph, with its own clock.

A step of a model runs its layers one after the other from a graph, each on tensors of its own.
A single call from Python would be timed with the host's cost, on data that the cache still holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hpcattn.bench.timing import Timer, host_seconds

# Some of it has no types in some versions of torch.
_cuda: Any = torch.cuda

_MOST_LAYERS = 64
# Of the L2 cache: what the tensors of all layers take together, at least.
_OVER_L2 = 3


def layers_for(bytes_of_layer: int, l2_bytes: int) -> int:
    """How many layers a graph needs so that none finds its data in the cache."""
    wanted = -(-_OVER_L2 * l2_bytes // max(bytes_of_layer, 1))
    return min(_MOST_LAYERS, max(2, wanted))


class Layers:
    """A call of each layer, replayed as one."""

    def __init__(self, calls: Sequence[Callable[[], object]], device: torch.device) -> None:
        """Captures the calls on a GPU, each made once before; keeps them as they are on the CPU.

        Args:
            calls: One a layer.
            device: Where they compute.
        """
        self._calls = calls
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type != "cuda":
            return
        with _cuda.device(device):
            stream = _cuda.Stream()
            stream.wait_stream(_cuda.current_stream())
            with _cuda.stream(stream):
                for call in calls:
                    call()
            _cuda.synchronize()
            graph = _cuda.CUDAGraph()
            with _cuda.graph(graph, stream=stream):
                for call in calls:
                    call()
            self._graph = graph

    def __call__(self) -> None:
        """Runs all layers; on a GPU without waiting for them."""
        if self._graph is not None:
            self._graph.replay()
            return
        for call in self._calls:
            call()


def timer_of(device: torch.device) -> Timer:
    """Seconds of a call on that device, by its own events where it is a GPU."""
    if device.type != "cuda":
        return host_seconds
    with _cuda.device(device):
        start, end = _cuda.Event(enable_timing=True), _cuda.Event(enable_timing=True)

    def event_seconds(call: Callable[[], object]) -> float:
        with _cuda.device(device):
            start.record()
            call()
            end.record()
            end.synchronize()
        return 1e-3 * float(start.elapsed_time(end))

    return event_seconds
