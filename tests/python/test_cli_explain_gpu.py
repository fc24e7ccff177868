# SPDX-License-Identifier: Apache-2.0
"""`hpcattn explain --device cuda` of GPUs that are not here: kernels, where they lie, plans."""

from __future__ import annotations

import pytest
import torch

import hpcattn
from cli_support import run
from hpcattn import _introspect
from hpcattn.bench.batch import parse_batch
from hpcattn.cli import explain_gpu

GROUP = {
    "num_q_heads": 64,
    "num_kv_heads": 8,
    "head_dim": 128,
    "page_size": 64,
    "q_dtype": torch.bfloat16,
    "kv_dtype": torch.bfloat16,
}
H200 = ["--device", "cuda", "--arch", "sm_90a", "--multiprocessors", "132"]
LARGE = ["--heads", "64:8", "--page-size", "64"]


def test_kernels_with_their_specs_and_places(monkeypatch, tmp_path):
    monkeypatch.setenv("HPCATTN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("HPCATTN_CUBIN_DIR", str(tmp_path))
    args = [*H200, *LARGE, "--softcap", "30", "--kv-dtype", "float8_e4m3"]
    report = run("explain", *args, "--json").json
    gpu = report["gpu"]
    assert gpu["arch"] == "sm_90a"
    assert gpu["capability"] == 90
    plan, attention = gpu["kernels"]
    assert plan["name"].startswith("make_plan<")
    for part in (".head_dim = 128", "kBFloat16", "kFloat8E4M3", ".softcap = true"):
        assert part in attention["name"]
    assert {kernel["cubin"] for kernel in gpu["kernels"]} == {"not compiled"}
    assert attention["threads"] == 160
    assert 0 < attention["shared_bytes"] <= 227 * 1024
    text = run("explain", *args).out
    for part in ("kernels of a call on sm_90a", attention["name"], "`hpcattn prepare` before"):
        assert part in text


def test_narrow_and_wide_tiles():
    report = run("explain", *H200, *LARGE, "--batch", "3x2K+1x1K:1K", "--json").json
    decode, prefill = report["kernels"]
    assert decode["kernel"] == "cuda/sm90/decode"
    assert prefill["kernel"] == "cuda/sm90/prefill"
    assert "at most 16 are one narrow tile" in decode["reason"]
    assert "more than 16 are tiles of 128" in prefill["reason"]
    assert report["plan"]["narrow_tiles"] == 3 * 8
    assert report["plan"]["wide_tiles"] == 8 * 1024 * 8 // 128


@pytest.mark.parametrize("batch", ["1x128K+31x4K", "64x4K", "1x8K:8K", "1x1K"])
def test_the_plan_covers_every_row_and_token_once(batch):
    steps = parse_batch(batch)
    plan = _introspect.plan_preview(
        steps.cu_seqlens_q(), list(steps.kv_lens), num_sms=132, causal=False, **GROUP
    )
    # The prefill kernel has a multiprocessor to itself.
    assert plan.num_workers == (132 if batch == "1x8K:8K" else 264)
    pairs = sum((t.rows[1] - t.rows[0]) * (t.kv[1] - t.kv[0]) for t in plan.tasks)
    assert pairs == sum(8 * 8 * n * m for n, m in zip(steps.rows, steps.kv_lens, strict=True))


def test_an_uneven_batch_is_balanced_and_drawn():
    args = [*H200, *LARGE, "--batch", "1x128K+31x4K"]
    plan = run("explain", *args, "--json").json["plan"]
    assert plan["workers"] == 264
    assert plan["busiest_over_mean"] < 1.1
    assert plan["idle_workers"] == 0
    assert plan["num_combines"] > 0
    assert plan["kernels"] == {"cuda/sm90/decode": plan["num_tasks"]}
    outcome = run("explain", *args, "--tasks")
    for part in ("264 ctas, 2 on each of 132", "worker   0  v", "and 232 workers more"):
        assert part in outcome.out


def test_a_plan_is_for_so_many_multiprocessors():
    args = ["--device", "cuda", "--arch", "sm_80", *LARGE, "--batch", "1x128K"]
    few = run("explain", *args, "--multiprocessors", "8", "--json").json
    assert few["plan"]["workers"] == 16
    assert few["gpu"]["multiprocessors_of"] == "--multiprocessors"
    if not torch.cuda.is_available():
        usual = run("explain", *args, "--json").json["gpu"]
        assert (usual["multiprocessors"], usual["multiprocessors_of"]) == (108, "A100")


def test_fixed_splits_are_cut_at_their_multiples():
    args = [*H200, *LARGE, "--batch", "1x1000", "--fixed-split", "256", "--json"]
    report = run("explain", *args).json
    assert report["plan"]["num_tasks"] == 8 * 4
    # A request's bits must not follow from its batch, and so not its kernel.
    assert report["gpu"]["kernels"][1]["name"].startswith("attention<")


def test_a_window_leaves_out_what_it_hides():
    base = [*H200, *LARGE, "--batch", "4x8K", "--json"]
    whole = run("explain", *base).json["plan"]["total_work"]
    assert run("explain", *base, "--window", "1K").json["plan"]["total_work"] < whole / 2


@pytest.mark.parametrize(
    ("texts", "capability"),
    [
        ((None, None), None),
        (("9.0", None), 90),
        (("8", None), 80),
        ((None, "sm_90a"), 90),
        ((None, "sm_86"), 86),
        ((None, "sm_100a"), 100),
        (("12.0", "sm_120"), 120),
    ],
)
def test_capabilities_are_read(texts, capability):
    assert explain_gpu.parse_capability(*texts) == capability


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--arch", "hopper"], "--arch hopper: expected sm_ and a number"),
        (["--arch", "sm_90a", "--capability", "8.0"], "are two GPUs; give one"),
        (["--arch", "sm_90a", "--multiprocessors", "-1"], "--multiprocessors must be 0 or more"),
        (
            ["--arch", "sm_90a", "--multiprocessors", "9000"],
            "9000 multiprocessors, expected 1 to 1024",
        ),
        (["--arch", "sm_90a", "--fixed-split", "100"], "fixed_split is 100"),
    ],
)
def test_bad_input_is_told_in_one_message(args, message):
    outcome = run("explain", "--device", "cuda", *args)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.out == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_its_kind_has_to_be_named():
    outcome = run("explain", "--device", "cuda")
    assert outcome.code == 1
    assert "--arch sm_90a" in outcome.out


@pytest.mark.parametrize(
    ("cu", "lens"), [([0, 1], []), ([1, 2], [5]), ([0, 2, 1], [5, 5]), ([0, 1], [-1])]
)
def test_lengths_that_are_none_are_refused(cu, lens):
    with pytest.raises(ValueError, match="plan_preview"):
        _introspect.plan_preview(cu, lens, num_sms=132, causal=True, **GROUP)


def test_a_preview_leaves_the_plans_of_the_cpu_alone():
    group = hpcattn.AttentionGroup(**GROUP)
    cu = torch.tensor([0, 1], dtype=torch.int32)
    plan = hpcattn.plan_attention(group, cu, torch.tensor([500], dtype=torch.int32))
    before = plan.clone()
    _introspect.plan_preview([0, 1], [500], num_sms=132, causal=True, **GROUP)
    assert torch.equal(plan, before)
