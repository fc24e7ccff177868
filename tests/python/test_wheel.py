# SPDX-License-Identifier: Apache-2.0
"""The wheel: what it holds, what its library depends on, and which versions of torch it serves."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hpcattn import _library

ROOT = Path(__file__).parents[2]
SMOKE = Path(__file__).with_name("smoke.py")
# The oldest that is served, and one newer than what the wheel is built on.
OTHER_TORCHES = os.environ.get("HPCATTN_TEST_TORCHES", "2.10.0 2.15.0").split()


def run(*command: str | Path, timeout: float = 120) -> str:
    """Output of a command that succeeds, run outside of the source tree."""
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        cwd=SMOKE.parent,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@functools.cache
def dynamic_section() -> str:
    return run("readelf", "--dynamic", "--wide", _library.find())


def test_the_library_needs_no_more_than_libtorch_cpu() -> None:
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic_section()))
    runtime = {"libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "libpthread.so.0"}
    loader = {name for name in needed if name.startswith("ld-linux")}
    assert needed - runtime - loader == {"libtorch_cpu.so"}
    assert "RPATH" not in dynamic_section()
    assert "RUNPATH" not in dynamic_section()


def test_the_library_uses_the_stable_abi_alone() -> None:
    symbols = run("nm", "--dynamic", "--undefined-only", _library.find()).split()
    from_torch = {s for s in symbols if re.match(r"_ZNK?(3c10|2at|5torch)|_Py|Py|aoti_|torch_", s)}
    assert from_torch, "something of torch is used"
    assert {s for s in from_torch if not s.startswith(("aoti_torch_", "torch_"))} == set()


def test_the_core_is_inside_and_hidden() -> None:
    exported = run("nm", "--dynamic", "--defined-only", "--demangle", _library.find())
    assert not re.search(r" T hpcattn::", exported), "the core's functions are not exported"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built anew from the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps")
    run(*pip, "--wheel-dir", folder, ROOT, timeout=1800)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.long
def test_what_the_wheel_holds(wheel: Path) -> None:
    assert re.fullmatch(r"hpcattn-[0-9.]+-py3-none-linux_\w+\.whl", wheel.name)
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if name.endswith(".so")] == ["hpcattn/hpcattn_torch.so"]
    assert {"hpcattn/__init__.py", "hpcattn/py.typed"} <= set(names)
    # The drop-in is inside; a package `hpc`, which may be another's, is not.
    assert {"hpcattn/dropin/hpc/__init__.py", "hpcattn/dropin/hpc/py.typed"} <= set(names)
    assert not [name for name in names if name.startswith("hpc/")]
    # Where libnvrtc is at hand the common kernels ship built; the whole stays small either way.
    if not json.loads(_library.load().cuda_status(False))["nvrtc"]["problem"]:
        assert len([name for name in names if name.startswith("hpcattn/cubins/")]) > 30
    assert wheel.stat().st_size < 20e6
    unwanted = [n for n in names if n.endswith((".h", ".a", ".cc", ".cmake", ".pyc"))]
    assert not unwanted
    metadata = next(name for name in names if name.endswith("METADATA"))
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    assert "Requires-Dist: torch>=2.10" in text
    assert "Requires-Python: >=3.10" in text


@pytest.mark.long
@pytest.mark.parametrize("torch_version", OTHER_TORCHES)
def test_one_wheel_serves_other_torches(wheel: Path, torch_version: str, tmp_path: Path) -> None:
    """A virtual environment that `make test-torch-other` made is used: torch is gigabytes."""
    kept = ROOT / f".venv-torch-{torch_version}"
    venv = kept if kept.exists() else tmp_path / "venv"
    python = venv / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", venv)
        run(python, "-m", "pip", "install", "-q", f"torch=={torch_version}", "numpy", timeout=1800)
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", wheel)
    answer = json.loads(run(python, SMOKE).splitlines()[-1])
    assert answer["torch"].startswith(torch_version)
    assert min(answer["calls"].values()) > 0
    print(answer)
