# SPDX-License-Identifier: Apache-2.0
"""The module `hpc`, answered by hpcattn: attention calls and their prologue."""

from __future__ import annotations

from typing import Any

from hpcattn.integrations import hpc as _dropin
from hpcattn.integrations.hpc import (
    QuantType,
    assign_attention_decode_task,
    attention_decode_bf16,
    attention_decode_fp8,
    attention_prefill_bf16,
    attention_with_kvcache_prefill_bf16,
    attention_with_kvcache_prefill_fp8,
    get_attention_decode_task_workspace,
    norm_eps,
    rope_norm_store_kv,
    rope_norm_store_kv_fp8,
    set_norm_eps,
)

__all__ = [
    "QuantType",
    "assign_attention_decode_task",
    "attention_decode_bf16",
    "attention_decode_fp8",
    "attention_prefill_bf16",
    "attention_with_kvcache_prefill_bf16",
    "attention_with_kvcache_prefill_fp8",
    "get_attention_decode_task_workspace",
    "norm_eps",
    "rope_norm_store_kv",
    "rope_norm_store_kv_fp8",
    "set_norm_eps",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        import hpcattn

        return hpcattn.__version__
    raise _dropin.missing(name)
