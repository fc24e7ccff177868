# SPDX-License-Identifier: Apache-2.0
"""The drop-in as callers look at it: names, signatures, refusals."""

from __future__ import annotations

import enum
import inspect
from typing import Any

import pytest
import torch

import hpcattn.integrations.hpc as hpc
from hpc_cases import E4M3, make_case, make_prologue

# The interface, call by call: names in order, with the defaults of those that have one.
NEEDED = inspect.Parameter.empty
_DECODE = {"task_map": None, "split_flag": None, "output": None}
_NORMS = {"q_norm_weight": None, "k_norm_weight": None}
_OUTS = {"out_q": None, "out_k": None, "out_v": None, "qk_norm_policy": 0}
_ROPE = "key_cache value_cache qkv cos_sin num_seqlen_per_req q_index kvcache_indices is_prefill"
SIGNATURES: dict[str, tuple[str, dict[str, Any]]] = {
    "attention_prefill_bf16": (
        "q k v seqlens_q cu_seqlens_q max_seqlens_q",
        {"output": None},
    ),
    "attention_with_kvcache_prefill_bf16": (
        "q kcache vcache cu_seqlens_q block_ids seqlens_kvcache max_seqlens_q",
        {"output": None},
    ),
    "attention_with_kvcache_prefill_fp8": (
        "q kcache vcache qscale kscale vscale cu_seqlens_q block_ids seqlens_kvcache max_seqlens_q",
        {"quant_type": 1, "output": None},
    ),
    "attention_decode_bf16": (
        "q kcache vcache block_ids num_seq_kvcache",
        {"mtp": 0, "new_kv_included": False, "splitk": True, **_DECODE},
    ),
    "attention_decode_fp8": (
        "q kcache vcache block_ids num_seq_kvcache qscale kscale vscale",
        {"mtp": 0, "new_kv_included": False, "quant_type": 1, "splitk": True, **_DECODE},
    ),
    "get_attention_decode_task_workspace": (
        "max_num_batch max_seqlen num_head_kv",
        {"min_process_len": 512},
    ),
    "assign_attention_decode_task": (
        "num_seq_kvcache task_map num_head_kv mtp new_kv_included",
        {"min_process_len": 512},
    ),
    "rope_norm_store_kv": (_ROPE, {**_NORMS, **_OUTS}),
    "rope_norm_store_kv_fp8": (
        f"{_ROPE} k_scale v_scale quant_policy",
        {"max_seqlens": 0, "upper_max": None, "q_scale_inv": None, **_NORMS, **_OUTS},
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    needed, defaults = SIGNATURES[name]
    expected = {**dict.fromkeys(needed.split(), NEEDED), **defaults}
    parameters = inspect.signature(getattr(hpc, name)).parameters
    assert {p.name: p.default for p in parameters.values()} == expected
    assert list(parameters) == list(expected)
    assert {p.kind for p in parameters.values()} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}


def test_quant_types() -> None:
    assert issubclass(hpc.QuantType, enum.Enum)
    assert {kind.name: kind.value for kind in hpc.QuantType} == {
        "QPERTOKEN_PERHEAD_KPERTOKEN_PERHEAD_VPERHEAD": 0,
        "QPERTOKEN_PERHEAD_KPERTENSOR_VPERTENSOR": 1,
        "QPERTENSOR_KPERTENSOR_VPERTENSOR": 2,
        "QPERTOKEN_PERHEAD_KPERTOKEN_PERHEAD_VPERHEAD_QKHADAMARD": 3,
    }


@pytest.mark.parametrize("name", ["fuse_moe", "gated_mla_gemm", "fuse_ihc_anything"])
def test_a_call_that_is_not_ours_is_named(name: str) -> None:
    with pytest.raises(AttributeError, match=f"'{name}'.*attention_decode_bf16"):
        getattr(hpc, name)
    assert not hasattr(hpc, name)


def test_every_public_name_is_there() -> None:
    assert set(SIGNATURES) | {"QuantType"} <= set(hpc.__all__)
    assert set(hpc.__all__) <= set(dir(hpc))
    for name in hpc.__all__:
        assert getattr(hpc, name) is getattr(hpc, name)


def decode_arguments(**changes: Any) -> dict[str, Any]:
    case = make_case(lengths=[(1, 9), (1, 20)], dtype=E4M3, heads=(8, 2))
    return {
        "q": case.q,
        "kcache": case.k_cache,
        "vcache": case.v_cache,
        "block_ids": case.block_ids,
        "num_seq_kvcache": case.kv_lens,
        "qscale": case.scales["q_scale"],
        "kscale": case.scales["k_scale"],
        "vscale": case.scales["v_scale"],
        "new_kv_included": True,
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"mtp": -1}, ValueError, "mtp is -1, expected 0 or more"),
        ({"mtp": 1}, ValueError, r"q has 2 rows, expected 2 requests x 2 \(mtp \+ 1\)"),
        ({"quant_type": 3}, NotImplementedError, "quant_type is 3 .*HADAMARD.*served are"),
        ({"quant_type": 9}, ValueError, "quant_type is 9, expected one of 0"),
        ({"quant_type": "per tensor"}, ValueError, "quant_type is 'per tensor'"),
        ({"qscale": torch.ones(1)}, ValueError, r"qscale has shape \[1\], expected \[2 or more, 8"),
        ({"qscale": torch.ones(1, 8)}, ValueError, r"qscale has shape \[1, 8\]"),
        ({"kscale": torch.ones(3)}, ValueError, "k_scale"),
        (
            {"quant_type": 0, "kscale": torch.ones(2, 2, 2, 2)},
            ValueError,
            r"kscale is torch.float32 of shape \[2, 2, 2, 2\], expected for quant type 0",
        ),
        ({"kscale": torch.ones(2, 2, 2, 2)}, ValueError, "k_scale"),
        ({"num_seq_kvcache": torch.tensor([9, 20])}, ValueError, "num_seq_kvcache is torch.int64"),
        ({"num_seq_kvcache": torch.ones(2, 1)}, ValueError, r"shape \[2, 1\], expected"),
        ({"q": torch.zeros(2, 8)}, ValueError, "expected"),
        ({"kcache": torch.zeros(2, 8, 3)}, ValueError, "kcache has rank 3, expected 3 and 4"),
        ({"output": torch.zeros(2, 8, 64)[:1]}, ValueError, "out is"),
    ],
)
def test_decode_refuses(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        hpc.attention_decode_fp8(**decode_arguments(**changes))


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"qscale": torch.ones(2, 7, 128)}, ValueError, r"expected \[2, 8, width\]"),
        ({"qscale": torch.ones(9, 8)}, ValueError, r"expected \[2, 8, width\]"),
        ({"max_seqlens_q": 129}, ValueError, "holds 128 query tokens a request, expected max"),
        ({"quant_type": 3}, NotImplementedError, "HADAMARD"),
    ],
)
def test_prefill_refuses(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    arguments = decode_arguments()
    del arguments["new_kv_included"]
    arguments["seqlens_kvcache"] = arguments.pop("num_seq_kvcache")
    arguments |= {"qscale": torch.ones(2, 8, 128), "max_seqlens_q": 1}
    arguments |= {"cu_seqlens_q": torch.tensor([0, 1, 2], dtype=torch.int32), **changes}
    with pytest.raises(error, match=text):
        hpc.attention_with_kvcache_prefill_fp8(**arguments)


def test_packed_prefill_refuses_lengths_that_disagree() -> None:
    q = torch.zeros(3, 2, 64)
    lengths = torch.ones(3, dtype=torch.int32), torch.tensor([0, 1, 3], dtype=torch.int32)
    with pytest.raises(ValueError, match="seqlens_q has 3 entries, expected 2"):
        hpc.attention_prefill_bf16(q, q, q, *lengths, 2)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"qk_norm_policy": 3}, ValueError, "qk_norm_policy is 3, expected 0"),
        ({"qk_norm_policy": 1}, ValueError, "q_norm_weight is not given"),
        ({"out_k": torch.zeros(2, 2, 64)}, NotImplementedError, "out_k is given without out_v"),
        ({"out_v": torch.zeros(2, 2, 64)}, NotImplementedError, "out_v is given without out_k"),
        ({"qkv": torch.zeros(2, 4 * 64)}, ValueError, "qkv has 256 columns, expected"),
        ({"qkv": torch.zeros(2, 700)}, ValueError, "qkv has 700 columns, expected"),
        ({"qkv": torch.zeros(2, 12, 64)}, ValueError, "qkv rank 3, expected 4 and 2"),
        ({"quant_policy": 0}, NotImplementedError, "quant_policy is 0 .*served are 1 or 2"),
        ({"quant_policy": 2}, ValueError, "q_scale_inv is not given"),
        ({"out_q": torch.zeros(2, 8, 64)}, ValueError, "out_q has dtype torch.float32"),
        ({"max_seqlens": -1}, ValueError, "max_seqlens is -1"),
        ({"upper_max": 500.0}, ValueError, "upper_max"),
    ],
)
def test_rope_refuses(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    batch = make_prologue(lengths=[(1, 9), (1, 20)], kv_dtype=E4M3)
    one = torch.ones(1)
    options = {"is_prefill": False, "k_scale": one, "v_scale": one, "quant_policy": 1}
    with pytest.raises(error, match=text):
        hpc.rope_norm_store_kv_fp8(**{**batch.arguments, **options, **changes})


def test_rope_refuses_a_request_over_max_seqlens() -> None:
    batch = make_prologue(lengths=[(1, 9), (200, 200)], kv_dtype=E4M3)
    one = torch.ones(1)
    with pytest.raises(ValueError, match="200 query tokens, over max_seqlens 100, padded to 128"):
        hpc.rope_norm_store_kv_fp8(
            **batch.arguments,
            is_prefill=True,
            k_scale=one,
            v_scale=one,
            quant_policy=1,
            max_seqlens=100,
        )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [((0, 1, 1), "max_num_batch is 0"), ((1, 0, 1), "max_seqlen"), ((1, 1, 0), "num_head_kv")],
)
def test_workspace_refuses(arguments: tuple[int, int, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        hpc.get_attention_decode_task_workspace(*arguments)


def test_assign_refuses() -> None:
    task_map = hpc.get_attention_decode_task_workspace(8, 100, 2)
    lengths = torch.ones(3, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"num_seq_kvcache is torch\.int64"):
        hpc.assign_attention_decode_task(lengths.long(), task_map, 2, 1, True)
    with pytest.raises(ValueError, match="mtp is -1"):
        hpc.assign_attention_decode_task(lengths, task_map, 2, -1, True)
    with pytest.raises(ValueError, match="min_process_len is 0"):
        hpc.assign_attention_decode_task(lengths, task_map, 2, 1, True, 0)
