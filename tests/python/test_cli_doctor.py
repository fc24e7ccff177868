# SPDX-License-Identifier: Apache-2.0
"""`hpcattn doctor`: facts, what runs where, what is missing; a broken installation is found."""

from __future__ import annotations

import os

import pytest
import torch

import hpcattn
from cli_support import run, run_process
from hpcattn import _library
from hpcattn.bench import machine
from hpcattn.cli import doctor, selftest

OPERATORS = {
    "paged_attention",
    "packed_attention",
    "merge_partials",
    "store_kv",
    "rope_norm_store_kv",
}

X86 = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Some Xeon
flags\t\t: fpu sse4_2 avx f16c fma avx2 avx512f avx512bw amx_tile amx_bf16 ht
"""
ARM = """processor\t: 0
Features\t: fp asimd asimdhp sve i8mm bf16
CPU implementer\t: 0x41
"""


def test_report():
    outcome = run("doctor", "--json")
    assert outcome.code == 0, outcome.out
    report = outcome.json
    assert report["works"] is True
    assert report["version"] == machine.package_version("hpcattn")
    assert report["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert report["machine"]["memory_bytes"] >= report["machine"]["memory_available_bytes"] > 0
    assert {found["name"] for found in report["operators"]} == OPERATORS
    assert {found["state"] for found in report["operators"]} == {"ok"}
    states = {found["name"]: found["state"] for found in report["software"]}
    assert states["python"] == states["torch"] == states["typer"] == "ok"
    cpu, cuda = report["devices"]["cpu"], report["devices"]["cuda"]
    assert cpu["runs"]
    assert set(cpu["operators"]) == OPERATORS
    assert cpu["threads"] == torch.get_num_threads()
    for row in cpu["kernels"]:
        expected = "cpu/narrow" if row["step"] == "decode" else "cpu/wide"
        assert row["kernel"].startswith(expected)
        assert row["reason"]
    assert {row["dtype"] for row in cpu["kernels"]} == {"float32", "float16", "bfloat16"}
    assert not cuda["runs"]
    assert any("CUDA" in reason for reason in cuda["reasons"])
    assert report["capabilities"]["built"] == {"cpu": True, "generic_cuda": False, "hopper": False}


def test_capabilities_are_those_of_the_operators():
    capabilities, support = run("doctor", "--json").json["capabilities"], _library.support()
    assert capabilities["head_dims"] == support["head_dims"]
    assert capabilities["page_size_multiple"] == support["page_size_multiple"]


def test_text():
    outcome = run("doctor")
    assert outcome.code == 0
    for part in ("CPU", "ISA", "threads", "Software", "GPU", "What runs where", "cpu/narrow"):
        assert part in outcome.out
    assert "hpcattn computes on this machine." in outcome.out


def test_something_missing_is_no_failure(monkeypatch):
    real = machine.package_version
    monkeypatch.setattr(
        machine, "package_version", lambda name: None if name == "gguf" else real(name)
    )
    outcome = run("doctor", "--json")
    assert outcome.code == 0
    (found,) = (found for found in outcome.json["missing"] if found["name"] == "gguf")
    assert found["state"] == "missing"
    assert found["fix"] == "pip install 'hpcattn[model]'"
    text = run("doctor").out
    assert "Missing, and how to get it" in text
    assert "pip install 'hpcattn[model]'" in text


def test_a_version_too_old_is_told_with_the_one_wanted(monkeypatch):
    real = machine.package_version
    monkeypatch.setattr(
        machine, "package_version", lambda name: "4.44.0" if name == "transformers" else real(name)
    )
    outcome = run("doctor", "--json")
    assert outcome.code == 0
    (found,) = (found for found in outcome.json["missing"] if found["name"] == "transformers")
    assert found["state"] == "unsupported"
    assert found["detail"].startswith("4.44.0, expected 5.")


@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_an_operator_that_fails_is_found_out(monkeypatch, operator):
    def broken(*args, **kwargs):
        raise RuntimeError("illegal instruction")

    monkeypatch.setattr(hpcattn, operator, broken)
    outcome = run("doctor", "--json")
    assert outcome.code == 1
    assert outcome.json["works"] is False
    states = {found["name"]: found for found in outcome.json["operators"]}
    assert states[operator]["state"] == "failed"
    assert states[operator]["detail"] == "illegal instruction"
    assert states[operator]["fix"]
    assert operator not in outcome.json["devices"]["cpu"]["operators"]
    text = run("doctor")
    assert text.code == 1
    assert "hpcattn can not compute on this machine." in text.out


def _off_by_a_little(function):
    def wrong(*args, **kwargs):
        out = function(*args, **kwargs)
        (out[0] if isinstance(out, tuple) else out)[0, 0, 0] += 1e-3
        return out

    return wrong


@pytest.mark.parametrize("operator", sorted(OPERATORS - {"store_kv"}))
def test_a_wrong_result_is_found_out(monkeypatch, operator):
    monkeypatch.setattr(hpcattn, operator, _off_by_a_little(getattr(hpcattn, operator)))
    results = {result.operator: result.passed for result in selftest.run_all()}
    assert not results[operator]
    assert all(passed for name, passed in results.items() if name != operator)


def test_a_store_that_writes_nothing_is_found_out(monkeypatch):
    monkeypatch.setattr(hpcattn, "store_kv", lambda *args, **kwargs: None)
    results = {result.operator: result.passed for result in selftest.run_all()}
    assert not results["store_kv"]


def test_a_package_that_can_not_be_loaded_is_a_failure(monkeypatch):
    def missing():
        raise ImportError("hpcattn needs torch 2.10 or newer, got 2.4.0")

    monkeypatch.setattr(_library, "load", missing)
    outcome = run("doctor", "--json")
    assert outcome.code == 1
    (found,) = outcome.json["operators"]
    assert found["name"] == "native library"
    assert "got 2.4.0" in found["detail"]
    assert outcome.json["devices"] == {}
    assert "hpcattn can not compute on this machine." in run("doctor").out


def test_gpu_facts_come_from_files_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "nvidia_driver", lambda: "NVRM version: 580.1")
    monkeypatch.setattr(machine, "nvidia_gpus", lambda: ["NVIDIA H200", "NVIDIA H200"])
    monkeypatch.setattr(machine, "libcuda", lambda: "/usr/lib/libcuda.so.1")
    monkeypatch.setattr(machine, "libnvrtc", lambda: None)
    found = {finding.name: finding for finding in doctor._gpu()}
    assert found["NVIDIA driver"].detail == "NVRM version: 580.1"
    assert found["NVIDIA GPUs"].detail == "NVIDIA H200, NVIDIA H200"
    assert found["libcuda"].state == "ok"
    assert found["libnvrtc"].state == "missing"


def test_libraries_are_found_and_not_loaded(monkeypatch, tmp_path):
    assert machine.find_library("libnothing.so", [tmp_path]) is None
    (tmp_path / "libcuda.so.1").write_bytes(b"not a library")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}")
    assert machine.libcuda() == str(tmp_path / "libcuda.so.1")


def test_cpuinfo_of_x86_and_arm():
    assert machine.cpu_model(X86) == "Some Xeon (family 6, model 143)"
    expected = "sse4_2 avx f16c fma avx2 avx512f avx512bw amx_tile amx_bf16"
    assert " ".join(machine.isa(X86)) == expected
    assert machine.isa(ARM) == ["asimd", "asimdhp", "sve", "bf16", "i8mm"]


@pytest.mark.parametrize(
    ("value", "expected"), [("3", 3), ("0", None), ("many", None), (None, None)]
)
def test_threads_follow_the_environment(monkeypatch, value, expected):
    if value is None:
        monkeypatch.delenv("HPCATTN_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("HPCATTN_NUM_THREADS", value)
    number, origin = machine.threads()
    if expected is None:
        assert (number, origin) == (machine.cores(), "the cores of this process")
    else:
        assert (number, origin) == (expected, "HPCATTN_NUM_THREADS")


def test_versions_compare_by_their_numbers():
    assert machine.version_tuple("2.11.0+cpu") == (2, 11)
    assert machine.version_tuple("2.9") < machine.version_tuple("2.10.0a0")
    assert machine.version_tuple("5") == (5, 0)


def test_facts_of_the_machine_need_no_torch():
    code = (
        "import sys; from hpcattn.bench import machine; machine.describe(); machine.versions()\n"
        "machine.libcuda(); machine.libnvrtc(); machine.nvidia_gpus()\n"
        "print('torch' in sys.modules)"
    )
    outcome = run_process(code=code)
    assert outcome.out == "False\n", outcome.err


def test_in_a_process():
    outcome = run_process("doctor", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["works"]
    assert outcome.err == ""
