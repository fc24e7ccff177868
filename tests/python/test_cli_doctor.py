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
from hpcattn.cli import doctor_cuda, selftest

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
    if not torch.cuda.is_available():
        assert not cuda["runs"]
        assert any("NVIDIA driver" in reason for reason in cuda["reasons"])
    assert report["capabilities"]["built"] == {"cpu": True, "generic_cuda": True, "hopper": True}


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


def _status(**parts):
    """A cuda_status() of a machine on which all is well, but for `parts`."""
    gpu = {"index": 0, "name": "NVIDIA H200", "capability": "9.0", "arch": "sm_90a"}
    gpu |= {"num_sms": 132, "memory_bytes": 150 << 30, "problem": ""}
    driver = {"path": "/usr/lib/libcuda.so.1", "cuda_version": "13.0", "problem": ""}
    nvrtc = {"path": "/lib/libnvrtc.so.13", "version": "13.0", "archs": [80, 90], "problem": ""}
    folder = {"folder": "/home/me/.cache/hpcattn/kernels", "kernels": 3, "bytes": 1 << 20}
    status = {
        "driver": {**driver, "devices": [gpu]},
        "nvrtc": nvrtc,
        "cache": {**folder, "problem": ""},
        "shipped": {**folder, "folder": "/site/hpcattn/cubins", "problem": ""},
        "compilations": [],
    }
    return {
        name: {**value, **parts.get(name, {})} if name in parts else value
        for name, value in status.items()
    }


def _found(status):
    return {finding.name: finding for finding in doctor_cuda.findings(status)}


def test_a_gpu_with_all_that_it_needs():
    found = _found(_status())
    del found["NVIDIA driver"]  # of this machine's files
    assert {finding.state for finding in found.values()} == {"ok"}
    assert found["libcuda"].detail == "CUDA 13.0, /usr/lib/libcuda.so.1"
    assert found["GPU 0"].detail == "NVIDIA H200, sm_90a, 132 multiprocessors, 150 GiB"
    assert found["libnvrtc"].detail == "13.0, /lib/libnvrtc.so.13, for sm_80, sm_90"
    assert found["kernel cache"].detail.endswith("3 kernels, 1.0 MiB")


@pytest.mark.parametrize(
    ("part", "name", "fix"),
    [
        ("driver", "libcuda", "525"),
        ("nvrtc", "libnvrtc", "pip install nvidia-cuda-nvrtc"),
        ("cache", "kernel cache", "HPCATTN_CACHE_DIR"),
    ],
)
def test_what_a_gpu_lacks_is_told_with_how_to_get_it(monkeypatch, part, name, fix):
    monkeypatch.setattr(machine, "nvidia_driver", lambda: "NVRM version: 580.1")
    found = _found(_status(**{part: {"problem": "it is broken"}}))[name]
    assert found.state in ("missing", "failed")
    assert "it is broken" in found.detail
    assert fix in found.fix


def test_without_a_gpu_nothing_needs_to_be_got(monkeypatch):
    monkeypatch.setattr(machine, "nvidia_driver", lambda: None)
    monkeypatch.setattr(machine, "nvidia_gpus", list)
    none = {"problem": "no driver", "devices": []}
    found = _found(_status(driver=none, nvrtc={"problem": "no libnvrtc"}))
    assert found["libcuda"].state == found["libnvrtc"].state == "missing"
    assert not any(finding.fix for finding in found.values())


def test_a_gpu_too_old_is_named():
    old = {"index": 1, "problem": "device 1 has compute capability 7.5, expected 8.0"}
    status = _status()
    status["driver"]["devices"].append(old)
    assert _found(status)["GPU 1"].state == "unsupported"
    assert doctor_cuda.usable(status) == status["driver"]["devices"][:1]


def test_without_the_native_library_files_are_looked_at(monkeypatch):
    monkeypatch.setattr(machine, "nvidia_driver", lambda: "NVRM version: 580.1")
    monkeypatch.setattr(machine, "nvidia_gpus", lambda: ["NVIDIA H200", "NVIDIA H200"])
    found = _found(None)
    assert found["NVIDIA driver"].detail == "NVRM version: 580.1"
    assert found["NVIDIA GPUs"].detail == "NVIDIA H200, NVIDIA H200"


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
        "machine.nvidia_driver(); machine.nvidia_gpus()\n"
        "print('torch' in sys.modules)"
    )
    outcome = run_process(code=code)
    assert outcome.out == "False\n", outcome.err


def test_in_a_process():
    outcome = run_process("doctor", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["works"]
    assert outcome.err == ""
