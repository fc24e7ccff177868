# SPDX-License-Identifier: Apache-2.0
"""Which kernels a model needs, and compiling them without a GPU. None of it needs one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import hpcattn
import tiny_models
from cli_support import run, run_process
from hpcattn import _library, _prepare

BF16, F16, E4M3 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
LAYERS: dict[str, Any] = {"num_q_heads": 32, "num_kv_heads": 8, "head_dim": 128, "page_size": 16}
MORE: dict[str, Any] = {
    "softcap": False,
    "alibi": False,
    "norm_policy": "none",
    "norm_scope": "head",
    "arch": "sm_90a",
}
HAS_NVRTC = not json.loads(_library.load().cuda_status(False))["nvrtc"]["problem"]
needs_nvrtc = pytest.mark.skipif(not HAS_NVRTC, reason="needs libnvrtc (a CUDA build of torch)")


def names(**changes: Any) -> set[str]:
    variants = _prepare.model_kernels(**{**LAYERS, "dtype": BF16, **MORE, **changes})
    found = [variant["name"] for variant in variants]
    assert len(set(found)) == len(found)
    return set(found)


def families(kernels: set[str]) -> set[str]:
    return {name.partition("<")[0] for name in kernels}


def test_every_family_is_there() -> None:
    kernels = names()
    wanted = {"store_kv", "rope_norm_store_kv", "merge_partials", "make_plan"}
    assert wanted < families(kernels)
    assert any("attention" in family for family in families(kernels))


@pytest.mark.parametrize(
    "changes",
    [
        {"head_dim": 64},
        {"dtype": F16},
        {"kv_cache_dtype": "fp8_e4m3"},
        {"kv_cache_dtype": torch.float8_e5m2},
        {"q_dtype": E4M3, "kv_cache_dtype": E4M3},
        {"softcap": True},
        {"alibi": True},
        {"norm_policy": "norm_then_rope"},
        {"norm_policy": "rope_then_norm", "norm_scope": "token"},
        {"page_size": 64},
    ],
    ids=str,
)
def test_what_tells_kernels_apart(changes: dict[str, Any]) -> None:
    assert names(**changes) != names()


@pytest.mark.parametrize(
    "changes",
    [{"num_q_heads": 8}, {"num_kv_heads": 4}, {"page_size": 16}],
    ids=str,
)
def test_what_one_kernel_serves(changes: dict[str, Any]) -> None:
    assert names(**changes) == names()


def test_hopper_has_kernels_of_its_own() -> None:
    def count(family: str, **changes: Any) -> int:
        return sum(name.startswith(f"{family}<") for name in names(**changes))

    assert (count("decode"), count("prefill")) == (2, 1)  # passes of 16 and of 32 rows
    assert (count("decode", page_size=0), count("prefill", page_size=0)) == (0, 1)  # packed
    assert (count("decode", page_size=24), count("prefill", page_size=24)) == (0, 0)


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"num_q_heads": 9}, ValueError, "9:8 heads, expected query heads that are a multiple"),
        ({"dtype": torch.float32}, NotImplementedError, "float32, a GPU's attention takes float16"),
        ({"kv_cache_dtype": F16}, NotImplementedError, "KV is float16 with activations in bfloat"),
        ({"kv_cache_dtype": "fp8"}, ValueError, "kv_cache_dtype is 'fp8', expected auto, fp8_e4m3"),
        ({"norm_policy": "both"}, ValueError, "norm_policy is 'both', expected 'none' or"),
        ({"head_dim": 72}, NotImplementedError, "head_dim is 72, supported are 64"),
    ],
    ids=str,
)
def test_refusals(changes: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        names(**changes)


def test_missing_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="num_kv_heads, dtype not given, and no model"):
        hpcattn.prepare(num_q_heads=4, head_dim=64, arch="sm_90a")
    with pytest.raises(ValueError, match="device is cpu, expected a CUDA device"):
        hpcattn.prepare(num_q_heads=4, num_kv_heads=4, head_dim=64, dtype=BF16, device="cpu")
    with pytest.raises(ValueError, match="device and arch are given"):
        hpcattn.prepare(
            num_q_heads=4, num_kv_heads=4, head_dim=64, dtype=BF16, device="cuda", arch="sm_90a"
        )
    with pytest.raises(ValueError, match="no Transformers model with num_attention_heads"):
        hpcattn.prepare(object(), arch="sm_90a")


def test_a_transformers_model_describes_itself() -> None:
    gemma = tiny_models.make("gemma2_softcap_window_scale", "eager").to(BF16)
    described = _prepare._of_transformers(gemma)
    heads = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 64}
    assert described == {**heads, "softcap": 3.0, "dtype": BF16}
    config = transformers.LlamaConfig(hidden_size=512, num_attention_heads=8, dtype="float16")
    described = _prepare._of_transformers(config)
    assert (described["head_dim"], described["num_kv_heads"], described["dtype"]) == (64, 8, F16)


COMPILE = """
import sys, torch, hpcattn
told = []
model = dict(num_q_heads=4, num_kv_heads=2, head_dim=64, dtype=torch.bfloat16, arch=sys.argv[1])
report = hpcattn.prepare(**model, progress=lambda *args: told.append(args))
assert [done for _, done, _ in told] == list(range(1, len(report.kernels) + 1)), told
assert report.compiled == hpcattn.compilations()
print(len(report.kernels), report.compiled)
"""


@needs_nvrtc
def test_a_second_process_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCATTN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("HPCATTN_CUBIN_DIR", str(tmp_path / "none"))

    def prepared() -> list[int]:
        done = subprocess.run(
            [sys.executable, "-c", COMPILE, "sm_80"], capture_output=True, text=True, check=True
        )
        return [int(word) for word in done.stdout.split()]

    count, compiled = prepared()
    assert count == compiled > 5
    assert prepared() == [count, 0]


@needs_nvrtc
def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCATTN_CACHE_DIR", str(tmp_path))
    options = ["--heads", "4:4", "--head-dim", "64", "--dtype", "float16", "--arch", "sm_90a"]
    shown = run_process("prepare", *options)
    assert shown.code == 0, shown.err
    assert "kernels ready for sm_90a" in shown.out
    assert "[1/" in shown.err
    answer = run("prepare", *options, "--json").json
    assert answer["where"] == {"arch": "sm_90a"}
    assert answer["compiled"] == 0
    folder = tmp_path / "ship"
    answer = run("prepare", *options, "--output", str(folder), "--json").json
    assert len(list(folder.iterdir())) == len(answer["kernels"])
    assert answer["bytes"] == sum(file.stat().st_size for file in folder.iterdir())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--heads", "4:4"], "--head-dim is not given"),
        (["--heads", "4:4", "--head-dim", "64", "--dtype", "float32"], "--dtype is 'float32'"),
        (["--common", "--device", "cuda:0", "--arch", "sm_80"], "--device and --arch are given"),
        (["--common", "--device", "cuda:0", "--output", "x"], "--output is given without --arch"),
        (["no-such-folder", "--arch", "sm_80"], "no config.json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_command_refusals(options: list[str], text: str) -> None:
    where = [] if {"--device", "--arch"} & set(options) else ["--arch", "sm_90a"]
    outcome = run("prepare", *options, *where)
    assert outcome.code == 2
    assert text in outcome.err


def test_what_ships() -> None:
    shipped = {variant["name"] for variant in _prepare.shipped_kernels()}
    for head_dim in (64, 128, 256):
        for dtype, dtypes in {BF16: [BF16, E4M3], F16: [F16, E4M3]}.items():
            for kv_dtype in dtypes:
                changes = {"head_dim": head_dim, "dtype": dtype, "kv_cache_dtype": kv_dtype}
                for page_size in (16, 64):
                    changes["page_size"] = page_size
                    assert names(**changes, norm_policy="norm_then_rope") <= shipped
    assert names(head_dim=256, softcap=True) <= shipped
    assert len(shipped) < 130  # 6 MB of a wheel that is to stay under 20
