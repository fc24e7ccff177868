# SPDX-License-Identifier: Apache-2.0
"""`hpcattn explain`: kernels and reasons, plans, refusals."""

from __future__ import annotations

import pytest
import torch

import hpcattn
from cli_support import run, run_process
from hpcattn import _introspect
from hpcattn.bench.batch import parse_batch, parse_count, show_count
from hpcattn.cli.explain import schedule

PLAN_KEYS = {
    "num_requests",
    "num_tokens",
    "num_tasks",
    "num_partials",
    "num_combines",
    "longest_task",
    "total_work",
    "workers",
    "kernels",
    "busiest_over_mean",
    "plan_bytes",
    "partial_bytes",
    "scratch_bytes",
}


def test_decode_takes_the_narrow_kernel():
    outcome = run("explain", "--batch", "16x2K", "--json")
    assert outcome.code == 0
    report = outcome.json
    assert report["supported"]
    assert report["refusals"] == []
    assert report["num_requests"] == 16
    assert report["num_tokens"] == 16
    (kernel,) = report["kernels"]
    assert kernel["query_tokens"] == 1
    assert kernel["kernel"].startswith("cpu/narrow")
    assert "4 rows" in kernel["reason"]
    plan = report["plan"]
    assert set(plan) == PLAN_KEYS
    assert plan["num_requests"] == 16
    assert sum(plan["kernels"].values()) == plan["num_tasks"]
    assert list(plan["kernels"]) == [kernel["kernel"]]
    # 32 query heads x 2048 keys of each of 16 requests, or more: few rows count by their reads.
    assert plan["total_work"] >= 16 * 32 * 2048
    assert plan["longest_task"] * plan["num_tasks"] >= plan["total_work"]


def test_a_prefill_takes_the_wide_kernel():
    report = run("explain", "--batch", "1x2K", "--rows", "all", "--json").json
    assert report["num_tokens"] == 2048
    assert report["kernels"][0]["kernel"].startswith("cpu/wide")
    assert any(name.startswith("cpu/wide") for name in report["plan"]["kernels"])


def test_the_kernel_explained_is_the_kernel_that_runs():
    outcome = run("explain", "--batch", "2x40", "--heads", "4:2", "--head-dim", "64", "--json")
    q = torch.randn(2, 4, 64, dtype=torch.bfloat16)
    cache = torch.randn(6, 16, 2, 64, dtype=torch.bfloat16)
    _introspect.reset_counters()
    hpcattn.paged_attention(
        q,
        cache,
        cache,
        page_table=torch.arange(6, dtype=torch.int32).view(2, 3),
        cu_seqlens_q=torch.tensor([0, 1, 2], dtype=torch.int32),
        kv_lens=torch.tensor([40, 40], dtype=torch.int32),
        scale=0.125,
    )
    counters = _introspect.counters()
    assert counters["paged_attention"] == 1
    (kernel,) = (row["kernel"] for row in outcome.json["kernels"])
    assert counters[kernel] == outcome.json["plan"]["num_tasks"]


def test_rows_that_differ_are_explained_each():
    report = run("explain", "--batch", "2x2K+1x4K:512", "--json").json
    assert [row["query_tokens"] for row in report["kernels"]] == [1, 512]
    assert len({row["kernel"] for row in report["kernels"]}) == 2


def test_an_uneven_batch_is_balanced():
    plan = run("explain", "--batch", "1x128K+31x4K", "--threads", "8", "--json").json["plan"]
    assert plan["workers"] == 8
    assert plan["busiest_over_mean"] < 1.1
    assert plan["num_combines"] > 0
    assert plan["partial_bytes"] > 0


def test_threads_are_left_as_they_were():
    before = torch.get_num_threads()
    assert (
        run("explain", "--threads", str(before + 3), "--json").json["plan"]["workers"] == before + 3
    )
    assert torch.get_num_threads() == before


def test_fixed_split_makes_more_tasks():
    free = run("explain", "--batch", "1x8K", "--json").json["plan"]
    fixed = run("explain", "--batch", "1x8K", "--fixed-split", "256", "--json").json["plan"]
    assert fixed["num_tasks"] > free["num_tasks"]
    assert fixed["num_tasks"] % 32 == 0  # 8192 / 256 splits of every task's heads


def test_text_has_kernel_reason_plan_and_picture():
    outcome = run("explain", "--batch", "1x8K+3x1K", "--threads", "2", "--tasks")
    assert outcome.code == 0
    for part in ("cpu/narrow", "plan: ", "balance: ", "workspace: ", "worker   0", "worker   1"):
        assert part in outcome.out
    pictures = [line for line in outcome.out.splitlines() if line.startswith("worker")]
    assert len(pictures) == 2
    assert all("0" in line.split(maxsplit=2)[2] for line in pictures)  # the long request is on both


def test_every_reason_of_a_refusal_is_printed():
    args = ["--head-dim", "72", "--page-size", "7", "--heads", "5:2", "--window", "0"]
    outcome = run("explain", *args)
    assert outcome.code == 1
    for part in ("head_dim is 72", "page_size is 7", "5", "window is 0"):
        assert part in outcome.out
    report = run("explain", *args, "--json")
    assert report.code == 1
    assert not report.json["supported"]
    assert report.json["plan"] is None
    assert len(report.json["refusals"]) >= 4


@pytest.mark.parametrize(
    ("capability", "kernel"), [("9.0", "cuda/sm90/decode"), ("8.9", "cuda/generic/attention")]
)
def test_the_kernel_of_a_gpu_generation(capability, kernel):
    outcome = run("explain", "--device", "cuda", "--capability", capability, "--json")
    assert outcome.code == 0
    assert {row["kernel"] for row in outcome.json["kernels"]} == {kernel}


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--capability", "7.5"], "has compute capability 7.5, expected 8.0 or above"),
        (["--capability", "9.0", "--dtype", "float32"], "float32 runs on the CPU alone"),
        ([], "compute capability of cuda:0 is not given"),
    ],
)
def test_what_a_gpu_does_not_run_is_refused_with_its_reason(args, part):
    outcome = run("explain", "--device", "cuda", *args, "--json")
    assert outcome.code == 1
    assert any(part in reason for reason in outcome.json["refusals"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--batch", "16y2K"], "'16y2K' can not be read"),
        (["--batch", ""], "can not be read"),
        (["--batch", "0x2K"], "has no request"),
        (["--batch", "1x2:4"], "4 new query tokens in a request of 2"),
        (["--batch", "2000000x2K"], "more than this command plans for"),
        (["--batch", "2x16:0"], "no request has a new query token"),
        (["--heads", "32/8"], "query heads:KV heads"),
        (["--dtype", "int4"], "dtype 'int4' is unknown"),
        (["--rows", "many"], "'many' is not a count"),
        (["--device", "tpu"], 'device is "tpu"'),
        (["--layout", "DHN"], 'layout is "DHN"'),
        (["--capability", "hopper"], "expected MAJOR.MINOR"),
        (["--threads", "-1"], "--threads must be 0 or more"),
        (["--fixed-split", "100"], "64"),
    ],
)
def test_bad_input_is_told_in_one_message(args, message):
    outcome = run("explain", *args)
    assert outcome.code == 2
    assert outcome.err.startswith("hpcattn explain: error: ")
    assert message in outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.out == ""


def test_in_a_process():
    outcome = run_process("explain", "--batch", "2x1K", "--json")
    assert outcome.code == 0
    assert outcome.json["plan"]["num_requests"] == 2
    assert outcome.err == ""


@pytest.mark.parametrize(
    ("text", "rows", "kv_lens", "new"),
    [
        ("16x2K", 1, (2048,) * 16, (1,) * 16),
        ("1x128K+2x4k", 1, (131072, 4096, 4096), (1, 1, 1)),
        ("3", 1, (3,), (1,)),
        ("2x8:4+1x1M", 1, (8, 8, 1 << 20), (4, 4, 1)),
        ("2x8", None, (8, 8), (8, 8)),
    ],
)
def test_batches_are_read(text, rows, kv_lens, new):
    batch = parse_batch(text, rows)
    assert batch.kv_lens == kv_lens
    assert batch.rows == new
    assert batch.cu_seqlens_q()[-1] == sum(new)


@pytest.mark.parametrize(
    ("causal", "window", "pairs"),
    [(True, None, 7 + 8 + 9), (False, None, 3 * 9), (True, 4, 3 * 4), (False, 4, 6 + 5 + 4)],
)
def test_pairs_count_what_a_mask_shows(causal, window, pairs):
    # 3 new tokens at positions 6, 7 and 8 of 9.
    assert parse_batch("1x9:3").pairs(causal=causal, window=window) == pairs


def test_counts_round_trip():
    for value in (0, 1, 1000, 1024, 4096, 1 << 20, 3 << 20):
        assert parse_count(show_count(value)) == value


def test_a_schedule_keeps_every_task_once():
    tasks = [
        _introspect.Task(i, (0, 1), (0, 1), (0, cost), False, cost)
        for i, cost in enumerate((8, 5, 4, 3))
    ]
    taken, costs = schedule(tasks, 2)
    assert sorted(task.request for mine in taken for task in mine) == [0, 1, 2, 3]
    assert costs == [11, 9]


@pytest.mark.parametrize("batch", ["1x8K+3x100", "4x300:70", "1x600:600"])
def test_tasks_cover_every_pair_once(batch):
    steps = parse_batch(batch)
    group = hpcattn.AttentionGroup(8, 2, 64, 16, torch.float32, torch.float32, causal=False)
    plan = hpcattn.plan_attention(
        group,
        torch.tensor(steps.cu_seqlens_q(), dtype=torch.int32),
        torch.tensor(steps.kv_lens, dtype=torch.int32),
    )
    tasks = _introspect.plan_tasks(plan).tasks
    for request, (kv_len, rows) in enumerate(zip(steps.kv_lens, steps.rows, strict=True)):
        seen = torch.zeros(2, rows * 4, kv_len, dtype=torch.int32)
        for task in tasks:
            if task.request == request:
                seen[slice(*task.kv_heads), slice(*task.rows), slice(*task.kv)] += 1
        assert int(seen.min()) == int(seen.max()) == 1
