# SPDX-License-Identifier: Apache-2.0
"""What the backend takes, and the reason for what it does not. Knows nothing of vLLM."""

from __future__ import annotations

import torch

from hpcattn import _library

# vLLM's names of a KV cache's dtype that are stored as another dtype than the activations'.
FP8 = {
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
_SAME = {"auto": None, "float16": torch.float16, "bfloat16": torch.bfloat16}
KV_CACHE_DTYPES = (*_SAME, *FP8)
ATTENTION_TYPES = ("decoder", "encoder", "encoder_only", "encoder_decoder")
_OLDEST = (8, 0)


def head_dims() -> list[int]:
    """Head dims that the operators compute."""
    return list(_library.support()["head_dims"])


def page_size_multiple() -> int:
    """A page holds a multiple of this many tokens."""
    return int(_library.support()["page_size_multiple"])


def dtypes(device: str) -> list[torch.dtype]:
    """Dtypes of activations: 16 bits, on the CPU float32 too."""
    wide = [torch.float32] if device == "cpu" else []
    return [torch.float16, torch.bfloat16, *wide]


def kv_dtype(name: str, activations: torch.dtype) -> torch.dtype:
    """The dtype that a cache of this name holds."""
    return FP8.get(name) or _SAME.get(name) or activations


def head_size_reason(head_size: int) -> str | None:
    """Why this head size is not taken."""
    if head_size in head_dims():
        return None
    return f"head_size {head_size} not supported, expected one of {_listed(head_dims())}"


def dtype_reason(dtype: torch.dtype, device: str) -> str | None:
    """Why activations of this dtype are not taken on `device`, "cpu" or "cuda"."""
    if dtype in dtypes(device):
        return None
    return f"dtype {dtype} not supported on {device}, expected one of {_listed(dtypes(device))}"


def kv_cache_dtype_reason(name: str | None) -> str | None:
    """Why a KV cache of this dtype is not taken."""
    if name is None or name in KV_CACHE_DTYPES:
        return None
    return f"kv_cache_dtype {name} not supported, expected one of {_listed(KV_CACHE_DTYPES)}"


def block_size_reason(block_size: int | None) -> str | None:
    """Why pages of this size are not taken."""
    if block_size is None or (block_size > 0 and block_size % page_size_multiple() == 0):
        return None
    return f"block_size {block_size} not supported, expected a multiple of {page_size_multiple()}"


def compute_capability_reason(capability: tuple[int, int] | None) -> str | None:
    """Why a GPU of this compute capability is not taken; None stands for no GPU."""
    if capability is None or capability >= _OLDEST:
        return None
    have = ".".join(map(str, capability))
    return (
        f"compute capability {have} not supported, expected {'.'.join(map(str, _OLDEST))} or later"
    )


def attn_type_reason(attn_type: str) -> str | None:
    """Why attention of this type is not taken."""
    if attn_type in ATTENTION_TYPES:
        return None
    return f"attention type {attn_type} not supported, expected one of {_listed(ATTENTION_TYPES)}"


def combination_reason(dtype: torch.dtype, kv_cache_dtype: str | None) -> str | None:
    """Why these two dtypes are not taken together."""
    if kv_cache_dtype is None or kv_cache_dtype not in KV_CACHE_DTYPES:
        return None
    stored = kv_dtype(kv_cache_dtype, dtype)
    if stored == dtype or stored in FP8.values():
        return None
    return (
        f"kv_cache_dtype {kv_cache_dtype} not supported with dtype {dtype}, expected auto or one of"
        f" {_listed(FP8)}"
    )


def _listed(values: object) -> str:
    assert hasattr(values, "__iter__")
    return ", ".join(str(value) for value in values)
