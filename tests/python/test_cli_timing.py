# SPDX-License-Identifier: Apache-2.0
"""How contenders take turns, and what their times give."""

from __future__ import annotations

import time

import pytest

from hpcattn.bench.ceilings import ReadBandwidth, gemm_rates
from hpcattn.bench.timing import Effort, Rotation, Timing, measure


def test_each_contender_comes_first_in_turn():
    rotation = Rotation(["a", "b", "c"])
    rounds = [rotation.next_round() for _ in range(4)]
    assert rounds == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]


def test_contenders_run_in_turns_with_flushes_between():
    log: list[str] = []
    effort = Effort(seconds=1e-9, min_rounds=3, max_rounds=9)
    calls = {name: (lambda name=name: log.append(name)) for name in ("a", "b")}
    timings = measure(calls, effort, before_each=lambda: log.append("-"))
    assert "".join(log) == "ab" + "-a-b" + "-b-a" + "-a-b"
    assert {name: len(timing.seconds) for name, timing in timings.items()} == {"a": 3, "b": 3}


def test_flushing_is_not_timed():
    effort = Effort(seconds=1e-9, min_rounds=2, max_rounds=2)
    timings = measure({"a": lambda: None}, effort, before_each=lambda: time.sleep(0.02))
    assert timings["a"].best < 0.02


def test_rounds_end_with_the_time():
    effort = Effort(seconds=0.03, min_rounds=1, max_rounds=1000)
    timings = measure({"a": lambda: time.sleep(0.005)}, effort)
    assert 1 <= len(timings["a"].seconds) <= 7


def test_progress_rises_to_one():
    shares: list[float] = []
    measure({"a": lambda: None}, Effort(1e-9, 4, 9), progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_statistics():
    timing = Timing((4.0, 1.0, 2.0, 3.0, 5.0))
    assert timing.median == 3.0
    assert timing.best == 1.0
    assert timing.spread == pytest.approx(2 / 3)
    assert timing.to_dict()["max_s"] == 5.0
    assert Timing((2.0,)).spread == 0.0


def test_without_contenders_nothing_is_measured():
    with pytest.raises(ValueError, match="no contender"):
        measure({}, Effort())


def test_the_best_read_rate_counts():
    read = ReadBandwidth(1 << 20)
    timings = read.calibrate(Effort(0.01, 3, 5))
    fastest = min(timings, key=lambda name: timings[name].best)
    assert read.form == fastest
    assert read.num_bytes == 1 << 20
    first = read.best_rate
    assert first == pytest.approx(read.num_bytes / timings[fastest].best)
    read.note(Timing((timings[fastest].best * 2,)))
    assert read.best_rate == first
    read.note(Timing((timings[fastest].best / 2,)))
    assert read.best_rate == pytest.approx(2 * first)


def test_gemm_rates_are_of_both_dtypes():
    rates = gemm_rates(Effort(0.01, 2, 2), size=64)
    assert set(rates) == {"float32", "bfloat16"}
    assert all(rate > 0 for rate in rates.values())
