# SPDX-License-Identifier: Apache-2.0
"""The faults of tools/kernel_faults.py still apply to the kernels; a GPU finds them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cubins import ROOT, compile_variants, find_nvrtc, find_tool

sys.path.insert(0, str(ROOT / "tools"))
from kernel_faults import FAULTS, PLANS, ROPE, STORE, Fault

FAMILIES = {"GpuQuick.Merge": "merge", ROPE: "rope", STORE: "store", PLANS: "attention"}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_applies(fault: Fault) -> None:
    assert fault.mutated() != (ROOT / fault.file).read_text(encoding="utf-8")


def test_names_are_unlike() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_compiles(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not would be "found" by every test."""
    tool, nvrtc = find_tool(), find_nvrtc()
    if tool is None or nvrtc is None:
        pytest.skip("needs hpcattn_variants (`make test-cpp`) and libnvrtc")
    # Those that the tool was built with: it has the structs that go with them.
    sources = tmp_path / "kernels_of_this_run"
    subprocess.run([str(tool), "--sources", str(sources)], check=True)
    target = sources / fault.included_name
    target.write_text(fault.mutated(target), encoding="utf-8")
    monkeypatch.setenv("HPCATTN_KERNEL_DIR", str(sources))
    family = FAMILIES.get(fault.tests, "plan" if "row_tile" in fault.file else "attention")
    if "rope_pairs" in fault.file:
        family = "rope_pairs"
    for name in ("decode", "prefill"):
        if f"sm90/{name}" in fault.file:
            family = name
    some = ["--family", family, "--every", str(10_000)]
    if family == "attention" and "combine" not in fault.file:
        # One that has everything.
        name = (
            ".head_dim = 64, .q_dtype = hpcattn::DType::kBFloat16, "
            ".kv_dtype = hpcattn::DType::kFloat8E4M3, .softcap = true, .alibi = true, "
            ".unaligned_kv = false"
        )
        some = ["--filter", name]
    cubins = compile_variants(tool, nvrtc, "sm_90a", tmp_path, some)
    assert cubins, os.linesep.join(some)
    assert [cubin.error for cubin in cubins if cubin.error] == []
