# SPDX-License-Identifier: Apache-2.0
"""The CUDA runtime as far as it goes without a GPU: what is opened when, and the real compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hpcattn import _library, _nvrtc

_ROOT = Path(__file__).parents[2]
_CPP_TESTS = _ROOT / "build/release/src/hpcattn_tests"


def _run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_paths_of_torchs_own_version_come_first(tmp_path):
    for name in ("cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.12"):
        path = tmp_path / "nvidia" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
    (tmp_path / "nvidia/cu13/lib/libnvrtc.alt.so.13").write_bytes(b"")

    def found(version: str | None) -> list[str]:
        folders = ["/nowhere", str(tmp_path), str(tmp_path)]
        return [Path(path).name for path in _nvrtc.paths(version, folders)]

    assert found("13.0") == ["libnvrtc.so.13", "libnvrtc.so.12"]
    assert found("12.8") == ["libnvrtc.so.12", "libnvrtc.so.13"]
    assert found(None) == ["libnvrtc.so.13", "libnvrtc.so.12"]
    assert _nvrtc.paths("13.0", []) == []


def test_loading_opens_neither_driver_nor_compiler_and_a_process_may_fork():
    code = """
import os, torch
from hpcattn import _library
before = {line.split()[-1] for line in open("/proc/self/maps")}
ops = _library.load()
opened = {line.split()[-1] for line in open("/proc/self/maps")} - before
assert not [path for path in opened if "libcuda" in path or "libnvrtc" in path], opened
child = os.fork()
if child == 0:
    ops.cuda_status(True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("fine")
"""
    assert _run(code) == "fine\n"


def test_status_says_what_is_missing(tmp_path):
    code = "from hpcattn import _library; print(_library.load().cuda_status(True))"
    nowhere = {
        "HPCATTN_LIBCUDA": "/nowhere/libcuda.so.1",
        "HPCATTN_NVRTC": "/nowhere/libnvrtc.so.13",
        "HPCATTN_CACHE_DIR": str(tmp_path / "cache"),
    }
    status = json.loads(_run(code, **nowhere))
    assert "/nowhere/libcuda.so.1" in status["driver"]["problem"]
    assert "/nowhere/libnvrtc.so.13" in status["nvrtc"]["problem"]
    assert status["cache"] == {
        "folder": str(tmp_path / "cache/kernels"),
        "kernels": 0,
        "bytes": 0,
        "problem": "",
    }
    assert status["compilations"] == []
    assert (tmp_path / "cache/kernels").stat().st_mode & 0o777 == 0o700


def test_status_without_the_driver_asks_files_alone():
    assert json.loads(_library.load().cuda_status(False))["driver"] is None


@pytest.mark.skipif(torch.version.cuda is None, reason="torch's own libnvrtc: no CUDA build")
def test_the_compiler_that_torch_brings_is_found(tmp_path):
    code = "from hpcattn import _library; print(_library.load().cuda_status(False))"
    environment = {"HPCATTN_NVRTC": "", "HPCATTN_CACHE_DIR": str(tmp_path)}
    nvrtc = json.loads(_run(code, **environment))["nvrtc"]
    assert nvrtc["problem"] == ""
    assert nvrtc["version"].partition(".")[0] == torch.version.cuda.partition(".")[0]
    assert {80, 86, 89, 90} <= set(nvrtc["archs"])


def test_cpp_tests_with_the_real_compiler():
    paths = _nvrtc.paths(torch.version.cuda)
    if not paths:
        pytest.skip("no libnvrtc: install a CUDA build of torch")
    if not _CPP_TESTS.is_file():
        pytest.skip(f"{_CPP_TESTS} is not built: make test-cpp")
    done = subprocess.run(
        [_CPP_TESTS, "--gtest_filter=RealNvrtc.*"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "HPCATTN_NVRTC": paths[0]},
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "SKIPPED" not in done.stdout
