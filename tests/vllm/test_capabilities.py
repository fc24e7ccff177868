# SPDX-License-Identifier: Apache-2.0
"""What vLLM's selector is answered: every reason, with what came and what is expected."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backend import AttentionBackend, AttentionType

from hpcattn.integrations.vllm.backend import HpcattnBackend, HpcattnCpuBackend

H200 = DeviceCapability(9, 0)


def reasons(backend: type[HpcattnBackend] = HpcattnBackend, **changes: Any) -> list[str]:
    """The backend's answer to a configuration that it takes, with changes."""
    asked: dict[str, Any] = {
        "head_size": 128,
        "dtype": torch.bfloat16,
        "kv_cache_dtype": "auto",
        "block_size": 16,
        "use_mla": False,
        "has_sink": False,
        "use_sparse": False,
        "use_mm_prefix": False,
        "use_per_head_quant_scales": False,
        "device_capability": H200,
        "attn_type": AttentionType.DECODER,
    }
    found: list[str] = backend.validate_configuration(**{**asked, **changes})
    return found


def skip_unless_asked(changes: dict[str, Any]) -> None:
    """Older versions ask less."""
    asked = inspect.signature(AttentionBackend.validate_configuration).parameters
    if not changes.keys() <= asked.keys():
        pytest.skip(f"this version does not ask for {', '.join(changes.keys() - asked.keys())}")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"head_size": 80, "block_size": 8},
        {"block_size": None, "kv_cache_dtype": None},
        {"block_size": 784, "dtype": torch.float16},
        {"kv_cache_dtype": "fp8", "use_per_head_quant_scales": True},
        {"kv_cache_dtype": "fp8_e5m2", "has_sink": True, "has_sliding_window": True},
        {"kv_cache_dtype": "bfloat16", "use_non_causal": True, "use_batch_invariant": True},
        {"use_kv_connector": True, "use_adaptive_verification": True},
        {"use_dcp": True},
        {"device_capability": DeviceCapability(8, 0)},
        {"device_capability": DeviceCapability(10, 0)},
        {"attn_type": AttentionType.ENCODER},
        {"attn_type": AttentionType.ENCODER_ONLY},
        {"attn_type": AttentionType.ENCODER_DECODER},
    ],
)
def test_what_is_taken(changes: dict[str, Any]) -> None:
    skip_unless_asked(changes)
    assert reasons(**changes) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"head_size": 72},
            "head_size 72 not supported, expected one of 64, 80, 96, 128, 192, 256",
        ),
        (
            {"dtype": torch.float32},
            "dtype torch.float32 not supported on cuda, expected one of torch.float16,"
            " torch.bfloat16",
        ),
        (
            {"kv_cache_dtype": "nvfp4"},
            "kv_cache_dtype nvfp4 not supported, expected one of auto, float16, bfloat16, fp8,"
            " fp8_e4m3, fp8_e5m2",
        ),
        (
            {"kv_cache_dtype": "float16"},
            "kv_cache_dtype float16 not supported with dtype torch.bfloat16, expected auto or one"
            " of fp8, fp8_e4m3, fp8_e5m2",
        ),
        ({"block_size": 12}, "block_size 12 not supported, expected a multiple of 8"),
        (
            {"device_capability": DeviceCapability(7, 5)},
            "compute capability 7.5 not supported, expected 8.0 or later",
        ),
        ({"use_mla": True}, "MLA not supported"),
        ({"use_sparse": True}, "sparse not supported"),
        ({"use_mm_prefix": True}, "partial multimodal token full attention not supported"),
        ({"use_rswa": True}, "R-SWA not supported"),
        ({"use_pcp": True}, "PCP not supported"),
    ],
)
def test_what_is_not_taken(changes: dict[str, Any], reason: str) -> None:
    skip_unless_asked(changes)
    assert reasons(**changes) == [reason]


def test_every_reason_is_given() -> None:
    assert len(reasons(head_size=72, block_size=12, use_mla=True, dtype=torch.float32)) == 4


def test_float32_is_taken_on_the_cpu() -> None:
    cpu = {"dtype": torch.float32, "device_capability": None}
    assert reasons(HpcattnCpuBackend, **cpu) == []
    assert reasons(HpcattnCpuBackend, **cpu, kv_cache_dtype="fp8") == []


def test_nothing_that_the_interface_may_ask_is_left_to_chance() -> None:
    """A capability that a later version adds shows here first, with the engine's own default."""
    known = {
        "supports_alibi_sqrt": False,
        "supports_attn_type": None,
        "supports_batch_invariance": True,
        "supports_block_size": None,
        "supports_combination": None,
        "supports_compute_capability": None,
        "supports_dcp": True,
        "supports_device_cpu_query_lens_mismatch": True,
        "supports_dtype": None,
        "supports_head_size": None,
        "supports_kv_cache_dtype": None,
        "supports_kv_cache_update_bypass": True,
        "supports_kv_connector": True,
        "supports_mm_prefix": False,
        "supports_non_causal": True,
        "supports_non_causal_dcp": False,
        "supports_pcp": False,
        "supports_per_head_quant_scales": True,
        "supports_rswa": False,
        "supports_sink": True,
        "supports_sliding_window": True,
    }
    named = {name for name, _ in inspect.getmembers(AttentionBackend) if name.startswith("support")}
    asked = named - {"supported_dtypes", "supported_kv_cache_dtypes", "supported_kv_cache_layouts"}
    assert asked <= known.keys()
    fixed = {name: known[name] for name in asked if known[name] is not None}
    answers = {name: getattr(HpcattnBackend, name) for name in fixed}
    assert {name: answer() if callable(answer) else answer for name, answer in answers.items()} == (
        fixed
    )


def test_page_sizes_and_preference() -> None:
    assert [size.base for size in HpcattnBackend.get_supported_kernel_block_sizes()] == [8]
    assert HpcattnBackend.get_preferred_block_size(16) == 16
    assert not HpcattnBackend.is_mla()
    assert not HpcattnBackend.is_sparse()
