# SPDX-License-Identifier: Apache-2.0
"""Every kernel compiles for every arch, and its machine code is what it should be.

NVRTC needs no GPU, and neither does reading SASS. By default some variants of attention are
compiled, for sm_90a more than for the other archs; HPCATTN_LONG_TESTS=1 compiles all for all.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cubins import Cubin, compile_variants, find_cuobjdump, find_nvrtc, find_tool

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100")
MOST_SECONDS = 10.0
# By default one of so many variants of attention and of rope is compiled. Attention's numbers share
# no factor with those of features, dtypes, head dims and page sizes, so that each of these is met.
EVERY = {"attention": 43, "rope": 2, "rope_pairs": 11}
EVERY_OF_SM_90A = {"attention": 9, "decode": 19, "prefill": 23}
LONG = "HPCATTN_LONG_TESTS" in os.environ


@pytest.fixture(scope="module", params=ARCHS)
def cubins(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Cubin]:
    tool, nvrtc = find_tool(), find_nvrtc()
    if tool is None:
        pytest.skip("hpcattn_variants is not built: `make test-cpp` builds it")
    if nvrtc is None:
        pytest.skip("no libnvrtc: install a torch with CUDA, or set HPCATTN_NVRTC")
    folder: Path = tmp_path_factory.mktemp(request.param)
    every = EVERY_OF_SM_90A if request.param == "sm_90a" else EVERY
    found = []
    of_attention = ("attention", "decode", "prefill")
    for family in (*of_attention, "plan", "step", "store", "rope", "rope_pairs", "merge"):
        step = 1 if LONG else every.get(family, 1)
        options = ["--family", family, "--every", str(step)]
        found += compile_variants(tool, nvrtc, request.param, folder, options)
    if request.param == "sm_90a" or LONG:  # those that look at page ids
        options = ["--family", "attention", "--every", "1" if LONG else "97"]
        found += compile_variants(tool, nvrtc, request.param, folder / "checked", options, True)
    assert found, "no variants"
    assert any(cubin.family == "decode" for cubin in found) == (request.param == "sm_90a")
    return found


def failures(cubins: list[Cubin], what_is_wrong: object) -> list[str]:
    assert callable(what_is_wrong)
    named = [(cubin, what_is_wrong(cubin)) for cubin in cubins if not cubin.error]
    return [f"{cubin.name} for {cubin.arch}: {wrong}" for cubin, wrong in named if wrong]


def test_every_variant_compiles_in_time(cubins: list[Cubin]) -> None:
    assert [f"{cubin.name}: {cubin.error}" for cubin in cubins if cubin.error] == []
    slow = [f"{c.name}: {c.cpu_seconds:.1f} s" for c in cubins if c.cpu_seconds > MOST_SECONDS]
    assert slow == []


def test_no_device_code_prints_or_stops(cubins: list[Cubin]) -> None:
    def wrong(cubin: Cubin) -> str:
        code = Path(cubin.file).read_bytes()
        words = [w.decode() for w in (b"vprintf", b"__assertfail", b"__trap") if w in code]
        return ", ".join(words)

    assert failures(cubins, wrong) == []


@pytest.mark.skipif(find_cuobjdump() is None, reason="no cuobjdump: install triton (torch's)")
def test_nothing_spills(cubins: list[Cubin]) -> None:
    def wrong(cubin: Cubin) -> str:
        stack = {key: cubin.usage[key] for key in ("STACK", "LOCAL") if cubin.usage[key] > 0}
        local = [opcode for opcode in ("LDL", "STL") if cubin.has(opcode)]
        return f"{stack} {local}" if stack or local else ""

    assert failures(cubins, wrong) == []


@pytest.mark.skipif(find_cuobjdump() is None, reason="no cuobjdump: install triton (torch's)")
def test_nothing_traps(cubins: list[Cubin]) -> None:
    assert failures(cubins, lambda cubin: "BPT" if cubin.has("BPT") else "") == []


@pytest.mark.skipif(find_cuobjdump() is None, reason="no cuobjdump: install triton (torch's)")
def test_attention_multiplies_on_tensor_cores_and_loads_ahead(cubins: list[Cubin]) -> None:
    def wrong(cubin: Cubin) -> str:
        if cubin.family not in ("attention", "decode"):
            return ""
        # Rows at odd addresses are copied byte by byte: asynchronous copies are of 16 bytes.
        ahead = [] if "unaligned_kv = true" in cubin.name else ["LDGSTS"]
        if cubin.family == "decode":
            ahead = ["UTMALDG"]
        return ", ".join(f"no {opcode}" for opcode in ["HMMA", *ahead] if not cubin.has(opcode))

    assert failures(cubins, wrong) == []


@pytest.mark.skipif(find_cuobjdump() is None, reason="no cuobjdump: install triton (torch's)")
def test_rows_are_counted_in_float32(cubins: list[Cubin]) -> None:
    """Float64 is slow on most GPUs, and so are conversions to it on all."""

    def wrong(cubin: Cubin) -> str:
        if cubin.family not in ("store", "rope_pairs"):
            return ""
        double = [i for i in cubin.instructions if i.startswith("F2F") and "F64" in i]
        double += [i for i in ("DADD", "DMUL", "DFMA", "DSETP", "DMNMX") if cubin.has(i)]
        return ", ".join(double)

    assert failures(cubins, wrong) == []


@pytest.mark.skipif(find_cuobjdump() is None, reason="no cuobjdump: install triton (torch's)")
def test_rows_of_pairs_move_16_bytes_a_lane(cubins: list[Cubin]) -> None:
    def wrong(cubin: Cubin) -> str:
        if cubin.family != "rope_pairs":
            return ""
        wide = [i for i in cubin.instructions if i.endswith(".128")]
        ways = ("LDGSTS", "LDS", "LDG", "STG")
        return ", ".join(f"no {w}.128" for w in ways if not any(i.startswith(w) for i in wide))

    assert failures(cubins, wrong) == []


@pytest.mark.skipif(find_cuobjdump() is None, reason="no cuobjdump: install triton (torch's)")
def test_prefill_multiplies_by_warpgroups_and_copies_by_the_engine(cubins: list[Cubin]) -> None:
    def wrong(cubin: Cubin) -> str:
        if cubin.family != "prefill":
            return ""
        fp8 = ".kv_dtype = hpcattn::DType::kFloat8E4M3" in cubin.name
        product = "QGMMA" if fp8 else "HGMMA"
        opcodes = [product, "UTMALDG", "USETMAXREG", *(["LDSM", "STSM"] if fp8 else [])]
        missing = [opcode for opcode in opcodes if not cubin.has(opcode)]
        # Where the compiler can not follow products under way, it waits after each of them.
        waits = cubin.count("WARPGROUP.DEPBAR")
        serialised = [f"{waits} waits"] if waits > 6 else []
        # Where it does not know that a warp's lanes are together, it moves the descriptors of each
        # product from lanes to uniform registers.
        moves = cubin.count("R2UR")
        slow = [f"{moves} moves"] if moves > 2 * cubin.count(product) + 8 else []
        return ", ".join([f"no {opcode}" for opcode in missing] + serialised + slow)

    assert failures(cubins, wrong) == []
