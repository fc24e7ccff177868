# SPDX-License-Identifier: Apache-2.0
"""The command line on a GPU: bench, explain, doctor, and each operator once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hpcattn
from hpcattn import _introspect
from hpcattn.bench import gpu, gpu_attention, runner
from hpcattn.bench.batch import parse_batch
from hpcattn.bench.cases import AttentionCase, Case, Heads, PlanCase, RopeCase, StoreCase
from hpcattn.bench.timing import Effort
from hpcattn.cli import selftest

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

Run = Callable[..., Any]


@pytest.fixture
def run() -> Run:
    """`hpcattn ARGS`, where the packages of the command line are installed."""
    pytest.importorskip("typer")
    pytest.importorskip("rich")
    from cli_support import run as command

    found: Run = command
    return found


HEADS = Heads(16, 2, 128)
CASES: list[Case] = [
    AttentionCase(parse_batch("4x300"), HEADS, 64),
    AttentionCase(parse_batch("1x2000+3x300"), HEADS, 64, kv_dtype="float8_e4m3"),
    AttentionCase(parse_batch("4x300:4"), HEADS, 64),
    AttentionCase(parse_batch("2x500:500"), HEADS, 64),
    RopeCase(parse_batch("4x128:1"), HEADS, 64),
    StoreCase(100, HEADS, 64),
    PlanCase(AttentionCase(parse_batch("1x2000+3x300"), HEADS, 64)),
]


def test_bench_times_one_case_of_its_suite(run: Run, tmp_path: Path) -> None:
    kept = tmp_path / "gpu.json"
    only = "decode 1x1K bfloat16 64:8"
    outcome = run("bench", "--device", "cuda", "--only", only, "--json", "--output", str(kept))
    assert outcome.code == 0, outcome.err
    report = outcome.json
    (case,) = report["cases"]
    assert case["name"] == "decode 1x1K bfloat16 64:8 heads of 128 page 64"
    assert case["layers"] > 2
    ours = case["contenders"]["hpcattn"]
    assert ours["rounds"] == 15
    assert 1e-7 < ours["median_s"] < 1e-3
    assert case["skipped"] == {}
    assert gpu_attention.SDPA_FLASH in case["contenders"]
    found = report["machine"]["gpu"]
    assert found["name"] == torch.cuda.get_device_name()
    assert found["arch"].startswith("sm_")
    assert found["nvrtc"]
    assert 1e11 < report["ceilings"]["read_bytes_per_s"] < 2e13
    text = run("bench", "--from", str(kept)).out
    assert "TB/s" in text
    assert found["name"] in text


def test_bench_checks_and_times_every_kind_of_case() -> None:
    settings = runner.Settings(Effort(0.05, 3, 3), read_bytes=1 << 28)
    report = gpu.run_suite(CASES, settings, torch.device("cuda", torch.cuda.current_device()))
    for case in report["cases"]:
        # Whether torch's flash attention takes a causal mask of other lengths is its own matter.
        assert case["skipped"] == {} or case["kind"] == "chunk", case["name"]
        assert case["check"]["rows_checked"] > 0
        assert all(row["median_s"] > 0 for row in case["contenders"].values())
    json.dumps(report, allow_nan=False)


def test_bench_refuses_a_gpu_that_is_not_there(run: Run) -> None:
    outcome = run("bench", "--device", "cuda:99")
    assert outcome.code == 1
    assert "this machine has" in outcome.err


def test_explain_names_the_gpu_here_and_its_plan(run: Run) -> None:
    report = run("explain", "--device", "cuda", "--batch", "1x8K+3x500", "--json").json
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    assert report["gpu"]["multiprocessors"] == properties.multi_processor_count
    assert report["gpu"]["capability"] == 10 * properties.major + properties.minor


@pytest.mark.parametrize("batch", ["1x128K+31x4K", "64x4K", "3x700:300+2x40"])
@pytest.mark.parametrize("fixed_split", [0, 512])
def test_the_plan_explained_is_the_one_that_is_made(batch: str, fixed_split: int) -> None:
    steps = parse_batch(batch)
    group = hpcattn.AttentionGroup(64, 8, 128, 64, torch.bfloat16, torch.bfloat16)
    lens = torch.tensor(steps.kv_lens, dtype=torch.int32, device="cuda")
    cu = torch.tensor(steps.cu_seqlens_q(), dtype=torch.int32, device="cuda")
    made = _introspect.plan_tasks(
        hpcattn.plan_attention(group, cu, lens, fixed_split=fixed_split)
    ).tasks
    sms = torch.cuda.get_device_properties(lens.device).multi_processor_count
    shown = _introspect.plan_preview(
        steps.cu_seqlens_q(),
        list(steps.kv_lens),
        num_sms=sms,
        fixed_split=fixed_split,
        **group._as_arguments(),
    ).tasks
    # Costs are told in other units.
    assert [(t.request, t.kv_heads, t.rows, t.kv, t.partial) for t in shown] == [
        (t.request, t.kv_heads, t.rows, t.kv, t.partial) for t in made
    ]


def test_doctor_tries_the_operators_there(run: Run) -> None:
    outcome = run("doctor", "--json")
    assert outcome.code == 0, outcome.out
    cuda = outcome.json["devices"]["cuda"]
    assert cuda["runs"]
    assert {found["state"] for found in outcome.json["operators"]} == {"ok"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_each_operator_once(dtype: torch.dtype) -> None:
    tolerance = 4e-3 if dtype == torch.float16 else 3e-2
    for result in selftest.run_all(selftest.Place("cuda", dtype, tolerance)):
        assert result.passed, f"{result.operator}: {result.detail}"
