# SPDX-License-Identifier: Apache-2.0
"""`hpcattn bench`: reports, tables, figures, verdicts, and what is refused."""

from __future__ import annotations

import datetime
import json

import pytest
import torch

from cli_support import TINY, run, run_process
from hpcattn.bench import attention, rope, runner, verdict
from hpcattn.bench.cases import SUITES, AttentionCase, Heads, RopeCase, parse_batch
from hpcattn.bench.timing import Effort

SMALL = Heads(4, 2, 64)
TIMES = {"median_s", "min_s", "max_s", "spread", "rounds"}


def _case(batch: str = "3x50", rows: int | None = 1, **options) -> AttentionCase:
    return AttentionCase(parse_batch(batch, rows), **{"heads": SMALL, **options})


@pytest.fixture(scope="module")
def report():
    """A run of three tiny cases in two dtypes, made once: the tests read it."""
    outcome = run("bench", "--decode", "2x40", "--prefill", "1x40", "--rope", "40", *TINY, "--json")
    assert outcome.code == 0, outcome.err
    return outcome.json


def test_report_says_when_where_and_with_what(report):
    assert report["schema"] == runner.SCHEMA
    assert datetime.datetime.fromisoformat(report["date"]).tzinfo is not None
    assert report["device"] == "cpu"
    assert report["machine"]["cpu"]
    assert report["machine"]["cores"] >= 1
    assert set(report["versions"]) == {"python", "hpcattn", "torch", "transformers", "numpy"}
    assert report["versions"]["torch"] == torch.__version__.split("+")[0]
    assert report["settings"]["threads"] == torch.get_num_threads()
    ceilings = report["ceilings"]
    assert ceilings["read_form"] in ceilings["read_forms_bytes_per_s"]
    assert ceilings["read_bytes_per_s"] >= max(ceilings["read_forms_bytes_per_s"].values())
    assert set(ceilings["gemm_flops_per_s"]) == {"float32", "bfloat16"}


def test_report_has_every_case_and_contender(report):
    names = [case["name"] for case in report["cases"]]
    assert names == [
        f"{name} {dtype} 4:2 heads of 64"
        for dtype in ("float32", "bfloat16")
        for name in ("decode 2x40", "prefill 1x40", "rope_norm_store_kv 40 tokens")
    ]
    for case in report["cases"]:
        check = case["check"]
        assert check["rows_checked"] == check["rows"] == case["params"]["num_tokens"]
        assert 0 < check["worst_share_of_bound"] <= 1
        for row in case["contenders"].values():
            assert set(row) >= TIMES
            assert 0 < row["min_s"] <= row["median_s"] <= row["max_s"]
            assert 2 <= row["rounds"] <= 3
    decode, prefill, fused = report["cases"][:3]
    plain = [attention.OURS, attention.SDPA_GQA, attention.SDPA_EXPANDED, attention.SDPA_GATHER]
    assert list(decode["contenders"]) == [*plain, attention.SDPA_PACKED]
    assert list(prefill["contenders"]) == plain
    assert list(fused["contenders"]) == [rope.OURS, rope.UNFUSED]


def test_rates_follow_from_the_medians(report):
    decode, prefill = report["cases"][:2]
    ours = decode["contenders"][attention.OURS]
    assert decode["kv_bytes"] == 2 * 40 * 2 * 2 * 64 * 4
    assert ours["bytes_per_s"] == pytest.approx(decode["kv_bytes"] / ours["median_s"])
    share = ours["bytes_per_s"] / report["ceilings"]["read_bytes_per_s"]
    assert decode["share_of_read"] == pytest.approx(share)
    share = ours["bytes_per_s"] / decode["read"]["bytes_per_s"]
    assert decode["share_of_read_in_turns"] == pytest.approx(share)
    assert decode["share_of_read_in_turns"] >= decode["share_of_read"]
    assert prefill["flops"] == 4 * 64 * 4 * (40 * 41 // 2)
    best = prefill["contenders"][prefill["sdpa_form"]]["median_s"]
    other = (set(attention.SDPA_PLAIN) - {prefill["sdpa_form"]}).pop()
    assert best <= prefill["contenders"][other]["median_s"]
    ours = prefill["contenders"][attention.OURS]["median_s"]
    assert prefill["speedup_over_sdpa"] == pytest.approx(best / ours)


@pytest.mark.parametrize(
    "case",
    [
        _case(),
        _case(dtype="float32"),
        _case(dtype="float16"),
        _case(kv_dtype="float8_e4m3"),
        _case(kv_dtype="float8_e5m2"),
        _case(layout="HND", page_size=8),
        _case(window=20),
        _case("1x90+2x33"),
        _case("2x50", heads=Heads(3, 3, 96)),
        _case("2x50:4"),
        _case("2x50:4", window=7),
        _case("1x50", None),
        _case("1x50", None, window=20),
        _case("2x50:20", dtype="float32", page_size=32),
    ],
    ids=lambda case: case.name,
)
def test_every_contender_computes_the_same(case):
    with torch.inference_mode():
        bench = attention.AttentionBench(case)
        calls = bench.contenders()
        ours = bench.check()
        assert ours.rows_checked == case.batch.num_tokens
        want = bench.ours().float()
        starts = case.batch.cu_seqlens_q()
        for name, call in calls.items():
            if name == attention.OURS:
                continue
            for part, out in zip(bench._uniform, call(), strict=True):
                for index, request in enumerate(part.requests):
                    rows = slice(starts[request], starts[request] + part.rows)
                    # Packed: the heads of a group are rows; flattened they are in the same order.
                    got = out[index].reshape(case.heads.num_q_heads, part.rows, -1).transpose(0, 1)
                    torch.testing.assert_close(got.float(), want[rows], atol=0.02, rtol=0.02)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_fused_prologue_and_torchs_agree(dtype):
    with torch.inference_mode():
        bench = rope.RopeBench(RopeCase(parse_batch("2x50:9"), SMALL, dtype=dtype))
        bench.check()
        ours, stored = bench.ours(), bench.k_cache.clone()
        bench.k_cache.zero_()
        torch.testing.assert_close(bench.unfused(), ours, atol=0.03, rtol=0.03)
        torch.testing.assert_close(bench.k_cache, stored, atol=0.03, rtol=0.03)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda out: out[2, 1].mul_(1.05),
        lambda out: out[0, 0, :1].fill_(float("nan")),
        lambda out: out.zero_(),
    ],
    ids=["one head 5 % off", "one NaN", "zeros"],
)
def test_a_wrong_answer_is_not_timed(monkeypatch, spoil):
    right = attention.AttentionBench.ours

    def wrong(self):
        out = right(self)
        spoil(out)
        return out

    monkeypatch.setattr(attention.AttentionBench, "ours", wrong)
    outcome = run("bench", "--decode", "3x50", "--dtype", "bf16", *TINY, "--json")
    assert outcome.code == 1
    assert "wrong at" in outcome.err
    assert "Nothing was timed" in outcome.err
    assert outcome.json["error"]["type"] == "RuntimeError"


def test_a_prologue_that_stores_the_wrong_v_is_not_timed(monkeypatch):
    right = rope.RopeBench.ours

    def wrong(self):
        out = right(self)
        self.v_cache[int(self.page_table[0, 0]), 0, 0, 0] += 1
        return out

    monkeypatch.setattr(rope.RopeBench, "ours", wrong)
    outcome = run("bench", "--rope", "16", *TINY)
    assert outcome.code == 1
    assert "V in the cache differs" in outcome.err


def test_large_cases_are_checked_by_a_sample(monkeypatch):
    monkeypatch.setattr("hpcattn.bench.check._PAIR_BUDGET", 100)
    with torch.inference_mode():
        result = attention.AttentionBench(_case("1x50", None)).check()
    assert 1 < result.rows_checked < 50
    assert result.rows == 50


def test_progress_goes_to_standard_error():
    outcome = run("bench", "--decode", "2x40", "--dtype", "bf16", *TINY)
    assert outcome.code == 0
    lines = outcome.err.splitlines()
    assert lines[0] == "[1/2] ceilings of this machine"
    assert lines[1].startswith("[2/2] decode 2x40 bfloat16")
    assert "[1/2]" not in outcome.out
    for part in (
        "read bandwidth",
        "median ms",
        "a plain read",
        attention.SDPA_GATHER,
        "time / ours",
    ):
        assert part in outcome.out


def test_threads_are_set_and_restored():
    before = torch.get_num_threads()
    outcome = run("bench", "--decode", "1x16", "--threads", str(before + 1), *TINY, "--json")
    assert outcome.json["settings"]["threads"] == before + 1
    assert torch.get_num_threads() == before


def test_output_is_kept_and_shown_again(report, tmp_path):
    kept = tmp_path / "results" / "cpu.json"
    kept.parent.mkdir()
    kept.write_text(json.dumps(report))
    again = tmp_path / "new" / "folder" / "again.json"
    outcome = run("bench", "--from", str(kept), "--output", str(again), "--json")
    assert outcome.code == 0
    assert outcome.json == report
    assert json.loads(again.read_text()) == report
    assert outcome.err == f"wrote {again}\n"


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_plot_of_cases_without_a_sweep(report, tmp_path, suffix):
    kept, figure = tmp_path / "cpu.json", tmp_path / f"cpu{suffix}"
    kept.write_text(json.dumps(report))
    assert run("bench", "--from", str(kept), "--plot", str(figure)).code == 0
    start = figure.read_bytes()[:5]
    assert start == (b"\x89PNG\r" if suffix == ".png" else b"<?xml")


@pytest.mark.parametrize("batches", [("2x16", "2x32", "2x64"), ("1x32", "2x32", "4x32")])
def test_plot_of_a_sweep_has_its_floor(tmp_path, batches):
    figure = tmp_path / "sweep.svg"
    args = [part for batch in batches for part in ("--decode", batch)]
    outcome = run("bench", *args, "--dtype", "bf16", *TINY, "--plot", str(figure), "--json")
    assert outcome.code == 0
    sweep = {case["sweep"] for case in outcome.json["cases"]}
    assert sweep == {"context" if len({batch[0] for batch in batches}) == 1 else "batch"}
    text = figure.read_text()
    for part in ("floor: K and V read once", attention.OURS, attention.SDPA_GQA):
        assert f"<!-- {part} -->" in text


def test_verdicts_of_the_bars():
    cases = [
        {"name": "decode 16x2K float32", "speedup_over_sdpa": 2.5, "share_of_read": 0.59},
        {"name": "prefill 1x2K bfloat16", "speedup_over_sdpa": 1.0},
        {"name": "decode 4x2K float32", "speedup_over_sdpa": 0.1},
    ]
    assert [found.line for found in verdict.judge(cases)] == [
        "met      decode 16x2K float32: 2.50 times as fast as SDPA (bar 2)",
        "not met  decode 16x2K float32: 59 % of the read bandwidth (bar 60 %)",
        "met      prefill 1x2K bfloat16: 1.00 times as fast as SDPA (bar 1)",
    ]


def test_the_standard_suite_has_a_case_for_every_bar():
    names = {case.name for case in SUITES["standard"]()}
    assert {bar.case for bar in verdict.BARS} <= names
    assert sum(name.startswith("rope_norm_store_kv") for name in names) == 4


def test_the_full_suite_names_no_case_twice():
    cases = SUITES["full"]()
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    assert names[: len(SUITES["standard"]())] == [case.name for case in SUITES["standard"]()]
    swept = [case for case in cases if isinstance(case, AttentionCase)]
    for dtype in ("float32", "bfloat16"):
        for sweep, count in (("context", 6), ("batch", 7)):
            found = [c for c in swept if sweep in c.sweep.split(",") and c.dtype == dtype]
            assert len(found) == count


@pytest.mark.parametrize(("share", "code"), [(0.7, 0), (0.5, 1)])
def test_strict_fails_where_a_bar_is_not_met(report, tmp_path, share, code):
    found = verdict.judge([{"name": "decode 16x2K float32", "share_of_read": share}])
    edited = {**report, "verdicts": [v.to_dict() | {"line": v.line} for v in found]}
    kept = tmp_path / "cpu.json"
    kept.write_text(json.dumps(edited))
    assert run("bench", "--from", str(kept)).code == 0
    outcome = run("bench", "--from", str(kept), "--strict")
    assert outcome.code == code
    assert found[0].line in outcome.out


def test_a_case_too_large_for_memory_is_left_out(monkeypatch):
    monkeypatch.setattr("hpcattn.bench.machine.memory_bytes", lambda: (1 << 12, 1 << 12))
    outcome = run("bench", "--decode", "2x40", "--dtype", "bf16", *TINY, "--json")
    assert outcome.code == 0
    (case,) = outcome.json["cases"]
    assert "contenders" not in case
    assert "are available" in case["skipped"]["all"]


def test_copies_too_large_for_memory_are_left_out(monkeypatch):
    case = _case("2x40")
    free = case.memory_bytes * 2
    monkeypatch.setattr("hpcattn.bench.machine.memory_bytes", lambda: (free, free))
    monkeypatch.setattr(AttentionCase, "expanded_bytes", free)
    result = runner.run_suite([case], runner.Settings(Effort(0.01, 2, 2), read_bytes=1 << 20))
    (found,) = result["cases"]
    assert attention.SDPA_EXPANDED not in found["contenders"]
    assert "over half of the available memory" in found["skipped"][attention.SDPA_EXPANDED]
    assert found["sdpa_form"] == attention.SDPA_GQA


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--device", "tpu"], "--device tpu: expected cpu, cuda or cuda:1 and the like"),
        (["--suite", "huge"], "--suite huge: expected standard or full"),
        (["--decode", "16*2K"], "'16*2K' can not be read"),
        (["--decode", "2x40", "--heads", "5:2"], "5 query heads over 2 KV heads"),
        (["--decode", "2x40", "--heads", "0:0"], "expected at least 1 of each"),
        (["--decode", "2x40", "--dtype", "int8"], "dtype 'int8' is unknown"),
        (["--decode", "2x40", "--window", "0"], "window 0: expected at least 1 token"),
        (["--decode", "2x40", "--page-size", "0"], "page size 0: expected at least 1 token"),
        (["--seconds", "0"], "seconds is 0.0, expected a number above 0"),
        (["--seconds", "nan"], "seconds is nan"),
        (["--min-rounds", "9", "--max-rounds", "3"], "rounds from 9 to 3"),
        (["--threads", "-2"], "--threads must be 0 or more"),
        (["--plot", "figure.bmp"], "figure.bmp: expected a name that ends in .png, .svg, .pdf"),
        (["--from", "absent.json"], "absent.json: No such file or directory"),
    ],
)
def test_bad_input_is_told_before_anything_runs(args, message):
    outcome = run("bench", *args)
    assert outcome.code == 2
    assert outcome.err.startswith("hpcattn bench: error: ")
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert outcome.out == ""


@pytest.mark.parametrize(("text", "message"), [("{", "not JSON"), ("[]", "schema is None")])
def test_a_file_that_is_no_report_is_refused(tmp_path, text, message):
    path = tmp_path / "report.json"
    path.write_text(text)
    outcome = run("bench", "--from", str(path))
    assert outcome.code == 2
    assert message in outcome.err


def test_what_hpcattn_does_not_support_is_refused_with_its_reason():
    outcome = run("bench", "--decode", "2x40", *TINY, "--head-dim", "72", "--dtype", "bf16")
    assert outcome.code == 2
    assert "72" in outcome.err
    assert "Traceback" not in outcome.err


def test_in_a_process(tmp_path):
    output, plot = tmp_path / "cpu.json", tmp_path / "cpu.png"
    args = ["--decode", "2x40", "--dtype", "bf16", *TINY, "--json"]
    outcome = run_process("bench", *args, "--output", str(output), "--plot", str(plot))
    assert outcome.code == 0, outcome.err
    assert outcome.json == json.loads(output.read_text())
    assert plot.read_bytes()[:4] == b"\x89PNG"
    assert f"wrote {output}" in outcome.err
