# SPDX-License-Identifier: Apache-2.0
"""Streams, CUDA graphs, memory and torch.compile: what a serving engine does with the operators."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from gpu_batches import BF16, gpu_batch, same_bits
from torch import nn

import hpcattn
from batches import Batch, int32

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CYCLES = 400_000_000  # about 0.2 s
HEADS, KV_HEADS, HEAD_DIM, PAGE = 8, 2, 128, 16
SCALE = HEAD_DIM**-0.5
# One long request among short ones: the plan splits it, so partial results need memory.
DECODE = [(1, 9000), (1, 300), (1, 17), (1, 1200)]


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def batch() -> Batch:
    return gpu_batch(lengths=DECODE, heads=(HEADS, KV_HEADS))


class Step:
    """A decode step over static tensors: store, plan, attention of two layers, merge."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.group = hpcattn.AttentionGroup.of(batch.q, batch.k_cache)
        num_requests = batch.kv_lens.numel()
        limits = {"max_requests": num_requests, "max_tokens": batch.q.size(0)}
        words = hpcattn.plan_words(self.group, **limits, device="cuda")
        self.plan = torch.zeros(words, dtype=torch.int32, device="cuda")
        self.outs = [torch.zeros_like(batch.q) for _ in range(2)]
        self.lses = [torch.zeros(batch.q.shape[:2], device="cuda") for _ in range(2)]
        self.merged = torch.zeros_like(batch.q)
        self.merged_lse = torch.zeros_like(self.lses[0])
        self.k = torch.ones(num_requests, KV_HEADS, HEAD_DIM, dtype=BF16, device="cuda")

    def slots(self) -> torch.Tensor:
        """Where each request's last token lies, computed on the device."""
        b = self.batch
        last = (b.kv_lens - 1).long()
        page = b.page_table.gather(1, (last // PAGE)[:, None])[:, 0].long()
        return page * PAGE + last % PAGE

    def __call__(self) -> None:
        b, ops = self.batch, torch.ops.hpcattn
        lengths = (b.cu_seqlens_q, b.kv_lens)
        hpcattn.store_kv(self.k, self.k, b.k_cache, b.v_cache, self.slots())
        hpcattn.plan_attention(self.group, *lengths, plan=self.plan)
        tensors = (b.q, b.k_cache, b.v_cache, b.page_table, *lengths)
        for out, lse, scale in zip(self.outs, self.lses, (SCALE, 2 * SCALE), strict=True):
            ops.paged_attention(*tensors, out, lse, scale=scale, plan=self.plan)
        ops.merge_partials(self.outs, self.lses, self.merged, self.merged_lse)

    def results(self) -> list[torch.Tensor]:
        return [t.clone() for t in (*self.outs, *self.lses, self.merged, self.merged_lse)]

    def set_lengths(self, lengths: list[int]) -> None:
        self.batch.kv_lens.copy_(int32(lengths))


def warmed_up(step: Step) -> Step:
    step()
    step()
    torch.cuda.synchronize()
    return step


def captured(step: Step) -> torch.cuda.CUDAGraph:
    warmed_up(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def all_same(ones: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(same_bits(one, other) for one, other in zip(ones, others, strict=True))


def test_the_current_stream_is_honoured(batch: Batch) -> None:
    step = warmed_up(Step(batch))
    expected = step.results()
    values, step.batch.q = batch.q, torch.zeros_like(batch.q)
    for tensor in (*step.outs, *step.lses):
        tensor.fill_(float("nan"))
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(CYCLES)
        step.batch.q.copy_(values)
        step()
        results = step.results()
    side.synchronize()
    assert all_same(results, expected)


def test_a_step_waits_for_nothing(batch: Batch) -> None:
    step = warmed_up(Step(batch))
    event = torch.cuda.Event()
    torch.cuda._sleep(CYCLES)
    event.record()
    step()
    assert not event.query(), "the host waited for the stream"
    torch.cuda.synchronize()


def test_streams_at_once_share_no_memory(batch: Batch) -> None:
    expected = warmed_up(Step(batch)).results()
    steps = [Step(batch) for _ in range(4)]
    streams = [torch.cuda.Stream() for _ in steps]
    torch.cuda.synchronize()
    for _ in range(20):
        for step, stream in zip(steps, streams, strict=True):
            with torch.cuda.stream(stream):
                step()
    torch.cuda.synchronize()
    for step in steps:
        assert all_same(step.results(), expected)


@pytest.mark.parametrize("order", ["short then long", "long then short"])
def test_a_graph_follows_new_lengths(batch: Batch, order: str) -> None:
    long, short = [kv for _, kv in DECODE], [5, 300, 1, 64]
    first, second = (short, long) if order == "short then long" else (long, short)
    step = Step(batch)
    step.set_lengths(first)
    graph = captured(step)
    for lengths in (second, first, second):
        step.set_lengths(lengths)
        for tensor in (*step.outs, *step.lses):
            tensor.fill_(float("nan"))
        graph.replay()
        replayed = step.results()
        step()
        assert all_same(replayed, step.results())
        assert not bool(replayed[0].isnan().any())


def test_1000_replays_have_the_same_bits(batch: Batch) -> None:
    step = Step(batch)
    graph = captured(step)
    graph.replay()
    expected = step.results()
    differ = torch.zeros((), dtype=torch.int64, device="cuda")
    bits = [
        (t.view(torch.uint8), e.view(torch.uint8))
        for t, e in zip(
            (*step.outs, *step.lses, step.merged, step.merged_lse), expected, strict=True
        )
    ]
    for _ in range(1000):
        graph.replay()
        for now, then in bits:
            differ += (now != then).sum()
    assert int(differ) == 0


def test_a_warm_step_allocates_and_compiles_nothing(batch: Batch) -> None:
    step = warmed_up(Step(batch))
    names = ("segment.all.allocated", "num_alloc_retries", "num_device_alloc")
    stats = torch.cuda.memory_stats()
    before = {name: stats.get(name) for name in names}
    free, compilations = torch.cuda.mem_get_info()[0], hpcattn.compilations()
    for lengths in ([9000, 1, 1, 1], [1, 1, 1, 1], [9000, 300, 17, 1200]):
        step.set_lengths(lengths)
        for _ in range(5):
            step()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    assert {name: stats.get(name) for name in names} == before
    assert torch.cuda.mem_get_info()[0] == free
    assert hpcattn.compilations() == compilations


def microseconds(call: Callable[[], Any], repeats: int = 200) -> list[float]:
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        times.append((time.perf_counter() - start) / repeats * 1e6)
    return sorted(times)


def test_host_cost_of_an_operator(capsys: pytest.CaptureFixture[str]) -> None:
    """Printed, not judged; the launches that are queued run shorter than they take to queue.

    As engines serve, in inference mode. Where gradients are recorded, an operator asks of each
    tensor whether it requires one, which the stable ABI answers by two calls of the dispatcher.
    """
    step = warmed_up(Step(gpu_batch(lengths=[(1, 40)], heads=(HEADS, KV_HEADS))))
    b, ops, slots = step.batch, torch.ops.hpcattn, step.slots()
    lengths = (b.cu_seqlens_q, b.kv_lens)
    tensors = (b.q, b.k_cache, b.v_cache, b.page_table, *lengths)
    table = torch.ones(64, HEAD_DIM, device="cuda")
    positions = torch.zeros(1, dtype=torch.int32, device="cuda")
    caches = {"k_cache": b.k_cache, "v_cache": b.v_cache, "slot_mapping": slots}
    calls = {
        "paged_attention": lambda: ops.paged_attention(
            *tensors, step.outs[0], None, scale=SCALE, plan=step.plan
        ),
        "make_plan": lambda: hpcattn.plan_attention(step.group, *lengths, plan=step.plan),
        "store_kv": lambda: ops.store_kv(step.k, step.k, b.k_cache, b.v_cache, slots),
        "rope_norm_store_kv": lambda: ops.rope_norm_store_kv(
            b.q, step.k, step.k, table, step.outs[0], positions=positions, **caches
        ),
        "merge_partials": lambda: ops.merge_partials(
            step.outs, step.lses, step.merged, step.merged_lse
        ),
    }
    for name, call in calls.items():
        with torch.inference_mode():
            call()
            times = microseconds(call)
        recording = microseconds(call)
        with capsys.disabled():
            print(
                f"\n  host cost of {name}: {times[0]:.1f} us, median {times[10]:.1f};"
                f" {recording[0]:.1f} with gradients recorded",
                end="",
            )
    with capsys.disabled():
        print("  (20 runs of 200)")


class Layer(nn.Module):
    """Projection, RoPE and store, a plan made inside, attention, projection.

    What a step writes is a buffer: its address stays, so it may be written within a CUDA graph.
    """

    def __init__(self, num_pages: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        width = HEADS * HEAD_DIM

        def weight(rows: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, width, generator=generator) * width**-0.5)

        self.qkv, self.out = weight((HEADS + 2 * KV_HEADS) * HEAD_DIM), weight(width)
        angles = torch.arange(512)[:, None] * (0.8 ** torch.arange(HEAD_DIM // 2))[None]
        self.cos_sin = nn.Buffer(torch.cat([angles.cos(), angles.sin()], -1))
        shape = (num_pages, PAGE, KV_HEADS, HEAD_DIM)
        self.k_cache, self.v_cache = nn.Buffer(torch.zeros(shape)), nn.Buffer(torch.zeros(shape))
        self.to("cuda", BF16)
        self.group = hpcattn.AttentionGroup(HEADS, KV_HEADS, HEAD_DIM, PAGE, BF16, BF16)
        words = hpcattn.plan_words(self.group, max_requests=2, max_tokens=2, device="cuda")
        self.plan = nn.Buffer(torch.zeros(words, dtype=torch.int32, device="cuda"))

    def forward(self, x: torch.Tensor, step: dict[str, Any]) -> torch.Tensor:
        qkv = (x @ self.qkv.T).view(-1, HEADS + 2 * KV_HEADS, HEAD_DIM)
        q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], 1)
        caches = {"k_cache": self.k_cache, "v_cache": self.v_cache}
        q, _ = hpcattn.rope_norm_store_kv(q, k, v, self.cos_sin, **step, **caches)
        lengths = (step["cu_seqlens_q"], step["kv_lens"])
        hpcattn.plan_attention(self.group, *lengths, plan=self.plan)
        out = hpcattn.paged_attention(q, *caches.values(), **step, scale=SCALE, plan=self.plan)
        return out.flatten(1) @ self.out.T


def serve(layer: Callable[..., torch.Tensor], start: int, steps: int) -> list[torch.Tensor]:
    """Two requests decode together; the second is `start` tokens behind the first."""
    table = torch.arange(64, dtype=torch.int32, device="cuda").view(2, 32).flip(1)
    step = {
        "page_table": table,
        "cu_seqlens_q": int32([0, 1, 2]).cuda(),
        "kv_lens": int32([start, 0]).cuda(),
    }
    generator = torch.Generator().manual_seed(1)
    outputs = []
    for _ in range(steps):
        step["kv_lens"] += 1
        x = torch.randn(2, HEADS * HEAD_DIM, generator=generator).to("cuda", BF16)
        outputs.append(layer(x, step).clone())
    return outputs


def test_torch_compile_with_cuda_graphs() -> None:
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    eager, layer = Layer(64), Layer(64)
    for tensor in ("k_cache", "v_cache"):
        getattr(layer, tensor).copy_(getattr(eager, tensor))
    compiled = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
    expected, got = serve(eager, 0, 40), serve(compiled, 0, 40)
    for step, (one, other) in enumerate(zip(got, expected, strict=True)):
        torch.testing.assert_close(
            one, other, atol=0.03, rtol=0.02, msg=lambda text, i=step: f"step {i}: {text}"
        )
    torch.testing.assert_close(layer.k_cache, eager.k_cache, atol=0.02, rtol=0.02)
    assert bool(eager.k_cache.any())
    assert counters["inductor"]["cudagraph_skips"] == 0
    compilations = hpcattn.compilations()
    hpcattn.reset_call_counts()
    serve(compiled, 40, 10)
    assert hpcattn.call_counts()["paged_attention"] == 0, "replays call no operator"
    assert hpcattn.compilations() == compilations
