# SPDX-License-Identifier: Apache-2.0
"""`hpcattn bench --device cuda` without a GPU: its suites, and its runner over the CPU's kernels.

With the CPU as the device, layers are called one by one instead of captured in a graph; cases,
checks, rates, tables and verdicts are the same. tests/gpu/test_cli.py runs it on a GPU.
"""

from __future__ import annotations

import contextlib
import json
import math

import pytest
import torch

from cli_support import TINY, run
from hpcattn.bench import gpu, gpu_attention, layers, report, runner, step, verdict
from hpcattn.bench.batch import parse_batch
from hpcattn.bench.cases import GPU_SUITES, AttentionCase, Heads, PlanCase, RopeCase, StoreCase
from hpcattn.bench.layers import Layers, layers_for, timer_of
from hpcattn.bench.timing import Effort, host_seconds

CPU = torch.device("cpu")
SMALL = Heads(4, 2, 64)
SETTINGS = runner.Settings(Effort(0.01, 2, 2), read_bytes=1 << 20)
H200 = {
    "name": "NVIDIA H200",
    "arch": "sm_90a",
    "multiprocessors": 132,
    "memory_bytes": 139 << 30,
    "l2_bytes": 50 << 20,
    "driver": "NVRM version: 580.65",
    "driver_cuda": "13.0",
    "nvrtc": "13.0",
    "torch_cuda": "13.0",
}


def _case(batch: str = "3x50", rows: int | None = 1, **options) -> AttentionCase:
    return AttentionCase(parse_batch(batch, rows), SMALL, **options)


CASES = [
    _case(),
    _case(kv_dtype="float8_e4m3"),
    _case("1x90+2x33"),
    _case(window=20),
    _case("2x50:4"),
    _case("1x50", None),
    _case("3x20", None),
    RopeCase(parse_batch("2x50:9"), SMALL),
    StoreCase(20, SMALL),
    PlanCase(_case("1x900+3x70")),
    PlanCase(_case("2x300:70")),
]


@pytest.fixture(scope="module")
def found():
    """All kinds of cases, run once: the tests read the report."""
    return gpu.run_suite(CASES, SETTINGS, CPU)


def test_every_case_is_checked_and_timed_over_layers(found):
    assert [case["name"] for case in found["cases"]] == [case.name for case in CASES]
    assert len({case["name"] for case in found["cases"]}) == len(CASES)
    for case in found["cases"]:
        assert case["layers"] >= 2
        assert case["check"]["rows_checked"] > 0
        assert 0 <= case["check"]["worst_share_of_bound"] <= 1
        for row in case["contenders"].values():
            assert 0 < row["min_s"] <= row["median_s"] <= row["max_s"]
            assert row["rounds"] == 2
        ours = case["contenders"]["hpcattn"]
        for key in ("bytes_per_s", "flops_per_s", "share_of_read", "share_of_gemm"):
            assert case.get(key) == ours.get(key)
    json.dumps(found, allow_nan=False)


def test_contenders_are_beside_ours_or_left_out_with_a_reason(found):
    for case in found["cases"]:
        names = {*case["contenders"], *case["skipped"]}
        if case["kind"] in ("prefill", "chunk"):
            assert names == {"hpcattn", gpu_attention.SDPA_FLASH}
        elif case["kind"] == "decode":
            flash = {gpu_attention.SDPA_FLASH, gpu_attention.SDPA_PACKED}
            assert names == {"hpcattn", *flash}
        elif case["kind"] == "store_kv":
            assert names == {"hpcattn", step.INDEX_COPY}
        elif case["kind"] == "plan":
            assert names == {"hpcattn"}


@pytest.mark.parametrize(
    "case",
    [_case(), _case("2x50:4"), _case("1x50", None), _case("1x90+2x33"), _case(layout="HND")],
    ids=lambda case: case.name,
)
def test_flash_attention_is_given_the_same_problem(monkeypatch, case):
    # The CPU's SDPA by any kernel: what it is asked is what a GPU's flash kernel is asked.
    monkeypatch.setattr(gpu_attention, "sdpa_kernel", lambda _: torch.inference_mode())
    with torch.inference_mode():
        bench = gpu_attention.GpuAttentionBench(case, 0, CPU)
        want, calls = bench.ours().float(), bench.contenders()
        starts = case.batch.cu_seqlens_q()
        for name, call in calls.items():
            if name == "hpcattn":
                continue
            for part, out in zip(bench._uniform, call(), strict=True):
                for index, request in enumerate(part.requests):
                    rows = slice(starts[request], starts[request] + part.rows)
                    got = out[index].reshape(case.heads.num_q_heads, part.rows, -1).transpose(0, 1)
                    torch.testing.assert_close(got.float(), want[rows], atol=0.02, rtol=0.02)


def test_a_wrong_answer_is_not_timed(monkeypatch):
    right = gpu_attention.GpuAttentionBench.ours

    def wrong(self):
        out = right(self)
        out[1, 1] *= 1.05
        return out

    monkeypatch.setattr(gpu_attention.GpuAttentionBench, "ours", wrong)
    with pytest.raises(RuntimeError, match="Nothing was timed"):
        gpu.run_suite([_case()], SETTINGS, CPU)


def test_a_store_that_writes_too_much_is_not_timed(monkeypatch):
    right = step.StoreBench.ours

    def wrong(self):
        right(self)
        self.v_cache.flatten(0, 1)[int(self.slots[0]) - 1] += 1

    monkeypatch.setattr(step.StoreBench, "ours", wrong)
    with pytest.raises(RuntimeError, match="differs from the V given"):
        gpu.run_suite([StoreCase(20, SMALL)], SETTINGS, CPU)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda tasks: tasks[:-1], "expected"),
        (lambda tasks: [*tasks, tasks[0]], "expected"),
        (lambda tasks: [t for t in tasks if t.request != 2], "0 rows of request 2"),
    ],
    ids=["the last is missing", "one twice", "a request is missing"],
)
def test_a_plan_that_does_not_cover_its_batch_is_not_timed(monkeypatch, spoil, message):
    right = step._introspect.plan_tasks

    class Spoilt:
        def __init__(self, plan):
            self.tasks = spoil(list(right(plan).tasks))

    monkeypatch.setattr(step._introspect, "plan_tasks", Spoilt)
    with pytest.raises(RuntimeError, match=message):
        gpu.run_suite([PlanCase(_case("1x900+3x70"))], SETTINGS, CPU)


def test_a_contender_of_torchs_that_can_not_answer_is_left_out(monkeypatch):
    def refuse(self):
        raise RuntimeError("No available kernel. Aborting execution.\nmore")

    monkeypatch.setattr(gpu_attention.GpuAttentionBench, "_flash", lambda self, part: refuse(self))
    # Replayed on the CPU nothing is tried beforehand, so try here as a capture does.
    monkeypatch.setattr(
        gpu, "Layers", lambda calls, device: [call() for call in calls] and Layers(calls, device)
    )
    (case,) = gpu.run_suite([_case()], SETTINGS, CPU)["cases"]
    assert gpu_attention.SDPA_FLASH not in case["contenders"]
    assert case["skipped"][gpu_attention.SDPA_FLASH] == "No available kernel. Aborting execution."
    assert "speedup_over_sdpa" not in case


def test_a_case_too_large_for_memory_is_left_out(monkeypatch):
    monkeypatch.setattr(gpu, "_free_bytes", lambda device: 1 << 10)
    (case,) = gpu.run_suite([_case()], SETTINGS, CPU)["cases"]
    assert "contenders" not in case
    assert "GiB are free" in case["skipped"]["all"]


def test_layers_pass_the_cache():
    assert layers_for(1 << 30, 50 << 20) == 2
    assert layers_for(4 << 20, 50 << 20) == 38
    assert layers_for(1, 50 << 20) == 64
    log: list[int] = []
    Layers([lambda i=i: log.append(i) for i in range(3)], CPU)()
    assert log == [0, 1, 2]
    assert timer_of(CPU) is host_seconds


class FakeCuda:
    """Stands for torch.cuda: logs what is asked of it, and captures nothing."""

    def __init__(self, log):
        self.log = log
        fake = self

        class Graph:
            def replay(self):
                fake.log.append("replay")

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                fake.log.append("record")

            def synchronize(self):
                fake.log.append("wait")

            def elapsed_time(self, end):
                return 2.5  # milliseconds

        self.CUDAGraph, self.Event = Graph, Event

    def device(self, device):
        return contextlib.nullcontext()

    def Stream(self):  # noqa: N802
        return self

    def wait_stream(self, other):
        self.log.append("wait_stream")

    def current_stream(self):
        return self

    def stream(self, stream):
        return contextlib.nullcontext()

    def synchronize(self):
        self.log.append("synchronize")

    @contextlib.contextmanager
    def graph(self, graph, stream):
        assert stream is self
        self.log.append("capture")
        yield
        self.log.append("captured")


def test_on_a_gpu_layers_are_a_graph_and_events_time_it(monkeypatch):
    log: list[object] = []
    monkeypatch.setattr(layers, "_cuda", FakeCuda(log))
    device = torch.device("cuda", 0)
    replay = Layers([lambda i=i: log.append(i) for i in range(2)], device)
    assert log == ["wait_stream", 0, 1, "synchronize", "capture", 0, 1, "captured"]
    log.clear()
    assert timer_of(device)(replay) == 0.0025
    assert log == ["record", "replay", "record", "wait"]


def _as_on_an_h200(found):
    machine = {**found["machine"], "gpu": H200}
    return {**found, "machine": machine, "device": "cuda:0"}


def test_the_tables_of_a_gpu(found, tmp_path):
    kept = tmp_path / "gpu.json"
    report.save(_as_on_an_h200(found), kept)
    outcome = run("bench", "--from", str(kept))
    assert outcome.code == 0
    for part in (
        "NVIDIA H200 (cuda:0, sm_90a), 132 multiprocessors, 139 GiB, L2 50 MiB",
        "CUDA 13.0",
        "median us",
        "TB/s",
        "TFLOP/s",
        "of read",
        "of product",
        "KV write alone",
        "The plan of a step",
        "a CUDA graph of several layers",
        step.INDEX_COPY,
    ):
        assert part in outcome.out
    assert "median ms" not in outcome.out
    assert "a plain read" not in outcome.out


def test_the_figure_of_a_gpu(found, tmp_path):
    kept, figure = tmp_path / "gpu.json", tmp_path / "gpu.svg"
    report.save(_as_on_an_h200(found), kept)
    assert run("bench", "--from", str(kept), "--plot", str(figure)).code == 0
    assert "NVIDIA H200" in figure.read_text()


def test_the_suites_have_a_case_for_every_bar_and_none_twice():
    for suite in GPU_SUITES.values():
        names = [case.name for case in suite()]
        assert {bar.case for bar in verdict.GPU_BARS} <= set(names)
        assert len(set(names)) == len(names)
    kinds = {case.kind for case in GPU_SUITES["standard"]()}
    assert kinds == {"decode", "prefill", "chunk", "rope_norm_store_kv", "store_kv", "plan"}


def test_verdicts_of_the_bars():
    decode, prefill = (bar.case for bar in verdict.GPU_BARS)
    cases = [{"name": decode, "bytes_per_s": 3.9e12}, {"name": prefill, "flops_per_s": 299e12}]
    assert [found.line for found in verdict.judge(cases, "NVIDIA H200")] == [
        f"met      {decode}: 3.90 TB/s of K and V (bar 3.2 TB/s)",
        f"not met  {prefill}: 299 TFLOP/s of visible pairs (bar 300 TFLOP/s)",
    ]
    assert verdict.judge(cases, "NVIDIA A100-SXM4-80GB") == []
    assert verdict.judge(cases) == []


def test_rates_follow_from_the_medians(found):
    (case,) = (c for c in found["cases"] if c["name"] == CASES[0].name)
    ours = case["contenders"]["hpcattn"]
    assert case["kv_bytes"] == 3 * 50 * 2 * 2 * 64 * 2
    assert ours["bytes_per_s"] == pytest.approx(case["kv_bytes"] / ours["median_s"])
    rate = found["ceilings"]["read_bytes_per_s"]
    assert ours["share_of_read"] == pytest.approx(ours["bytes_per_s"] / rate)
    assert case["read_floor_s"] == pytest.approx(case["kv_bytes"] / rate)
    assert math.isclose(case["speedups"][gpu_attention.SDPA_FLASH], case["speedup_over_sdpa"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_without_a_gpu_the_command_says_so(device):
    outcome = run("bench", "--device", device, "--json")
    assert outcome.code == 1
    assert f"--device {device}: torch finds no GPU here" in outcome.err
    assert outcome.json["error"]["type"] == "RuntimeError"


def test_only_takes_cases_by_their_names():
    args = ["--decode", "2x40", "--prefill", "1x40", *TINY, "--json"]
    outcome = run("bench", *args, "--only", "prefill", "--only", "2x40 bf")
    assert [case["name"] for case in outcome.json["cases"]] == [
        "prefill 1x40 float32 4:2 heads of 64",
        "decode 2x40 bfloat16 4:2 heads of 64",
        "prefill 1x40 bfloat16 4:2 heads of 64",
    ]
    outcome = run("bench", *args, "--only", "chunk")
    assert outcome.code == 2
    assert "--only chunk: no case has it in its name. There are: decode 2x40" in outcome.err
