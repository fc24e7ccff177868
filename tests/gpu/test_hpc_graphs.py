# SPDX-License-Identifier: Apache-2.0
"""The drop-in `hpc` in CUDA graphs and on several streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import hpcattn.integrations.hpc as hpc
from hpc_cases import E4M3, Case, make_case

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

# Captured short, replayed long.
LENGTHS = [(2, 3000), (2, 40), (2, 999), (2, 17)]
SHORT = [4, 2, 3, 2]


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


class Layers:
    """Two unlike layers that share lengths, and a task map."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        self.cases = [
            make_case("cuda", lengths=LENGTHS, dtype=dtype, heads=heads, head_dim=128, seed=seed)
            for seed, heads in enumerate(((8, 2), (4, 1)))
        ]
        out_dtype = torch.bfloat16 if dtype == E4M3 else dtype
        self.outs = [torch.zeros(c.q.shape, dtype=out_dtype, device="cuda") for c in self.cases]
        self.long = self.cases[0].kv_lens.clone()
        self.lengths = self.cases[0].kv_lens.clone()
        for case in self.cases:
            case.kv_lens = self.lengths
        self.task_map = hpc.get_attention_decode_task_workspace(8, 4096, 2)

    def set(self, lengths: list[int] | torch.Tensor) -> None:
        self.lengths.copy_(torch.as_tensor(lengths, dtype=torch.int32))

    def assign(self) -> None:
        hpc.assign_attention_decode_task(self.lengths, self.task_map, 2, 2, True)

    def run(self, task_map: bool = True) -> None:
        for _ in range(2):
            for case, out in zip(self.cases, self.outs, strict=True):
                out.fill_(float("nan"))
                tasks = self.task_map if task_map else None
                case.decode(new_kv_included=True, task_map=tasks, output=out)

    def expect(self, what: str) -> None:
        for case, out in zip(self.cases, self.outs, strict=True):
            case.check(out, what)
            alone = case.decode(new_kv_included=True)
            assert torch.equal(alone, out), what

    def capture(self, body: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            body()
        return graph


@pytest.mark.parametrize("dtype", [torch.bfloat16, E4M3])
@pytest.mark.parametrize("way", ["assign in the graph", "assign before", "no map"])
def test_a_graph_follows_new_lengths(way: str, dtype: torch.dtype) -> None:
    layers = Layers(dtype)
    layers.set(SHORT)
    layers.assign()
    layers.run(way != "no map")

    def body() -> None:
        if way == "assign in the graph":
            layers.assign()
        layers.run(way != "no map")

    graph = layers.capture(body)
    for _ in range(3):
        layers.set(layers.long)
        if way == "assign before":
            layers.assign()
        graph.replay()
        layers.expect(way)
        # Calls outside of the graph keep working beside it, with the same map.
        layers.assign()
        layers.run()
        layers.expect("outside")
        layers.set(SHORT)
        graph.replay()
    assert all(bool(out.isfinite().all()) for out in layers.outs)


def test_a_graph_that_was_never_warmed() -> None:
    """The table of row starts, and the plan, are then made within the graph alone."""
    layers = Layers()
    layers.run()  # compiles; the rows below have not been seen
    case = make_case("cuda", lengths=[(13, 13), (13, 800)], heads=(4, 1), head_dim=128)
    out = torch.zeros(case.q.shape, dtype=torch.bfloat16, device="cuda")
    case.decode(new_kv_included=True)  # compiles the many-row kernel
    from hpcattn.integrations.hpc import steps

    steps._tables.pop((case.kv_lens.device, 13))
    task_map = hpc.get_attention_decode_task_workspace(8, 4096, 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        case.decode(new_kv_included=True, task_map=task_map, output=out)
    assert (case.kv_lens.device, 13) not in steps._tables
    eager = case.decode(new_kv_included=True, task_map=task_map)
    case.check(eager, "outside, before any replay")
    graph.replay()
    assert torch.equal(out, eager)


def test_graphs_of_many_batch_sizes_share_a_map() -> None:
    """As engines capture: one graph a size, largest first, one task map for all."""
    case = make_case("cuda", lengths=[(1, 500 * i + 1) for i in range(1, 9)], head_dim=128)
    task_map = hpc.get_attention_decode_task_workspace(8, 8192, 2)
    whole = case.decode(new_kv_included=True)
    graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
    for size in (8, 4, 2, 1):
        part = Case(**{**vars(case), "q": case.q[:size], "kv_lens": case.kv_lens[:size]})
        part.block_ids = case.block_ids[:size]
        hpc.assign_attention_decode_task(part.kv_lens, task_map, 2, 1, True)
        part.decode(new_kv_included=True, task_map=task_map)
        out = torch.zeros(part.q.shape, dtype=torch.bfloat16, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            part.decode(new_kv_included=True, task_map=task_map, output=out)
        graphs[size] = (graph, out)
    for size in (1, 8, 2, 4, 8):
        hpc.assign_attention_decode_task(case.kv_lens[:size], task_map, 2, 1, True)
        graph, out = graphs[size]
        graph.replay()
        for row in range(size):
            torch.testing.assert_close(out[row], whole[row], rtol=2e-2, atol=2e-2)


def test_two_streams_may_share_a_map() -> None:
    layers = Layers()
    layers.assign()
    layers.run()
    torch.cuda.synchronize()
    expected = [out.clone() for out in layers.outs]
    streams = [torch.cuda.Stream() for _ in range(2)]
    results = []
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                case = layers.cases[0]
                results.append(case.decode(new_kv_included=True, task_map=layers.task_map))
    torch.cuda.synchronize()
    assert all(torch.equal(result, expected[0]) for result in results)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_device_than_the_current_one() -> None:
    case = make_case("cuda:1", lengths=LENGTHS, heads=(8, 2), head_dim=128)
    case.check(case.decode(new_kv_included=True), "cuda:1")
    assert torch.cuda.current_device() == 0
