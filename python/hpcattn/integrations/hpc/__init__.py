# SPDX-License-Identifier: Apache-2.0
"""The drop-in for the module `hpc`: its attention calls and their prologue, over hpcattn.

    import hpcattn.integrations.hpc as hpc
    hpc.register()      # `import hpc` and find_spec("hpc") find it, in this process

Other ways to have it as `hpc` stand in docs/hpc.md. Importing this package imports no torch; the
first call that is looked up does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcattn.integrations.hpc.attention import (
        attention_decode_bf16,
        attention_decode_fp8,
        attention_prefill_bf16,
        attention_with_kvcache_prefill_bf16,
        attention_with_kvcache_prefill_fp8,
    )
    from hpcattn.integrations.hpc.install import register
    from hpcattn.integrations.hpc.quant import QuantType
    from hpcattn.integrations.hpc.rope import (
        norm_eps,
        rope_norm_store_kv,
        rope_norm_store_kv_fp8,
        set_norm_eps,
    )
    from hpcattn.integrations.hpc.tasks import (
        assign_attention_decode_task,
        get_attention_decode_task_workspace,
    )

_HOME = {
    "QuantType": "quant",
    "assign_attention_decode_task": "tasks",
    "attention_decode_bf16": "attention",
    "attention_decode_fp8": "attention",
    "attention_prefill_bf16": "attention",
    "attention_with_kvcache_prefill_bf16": "attention",
    "attention_with_kvcache_prefill_fp8": "attention",
    "get_attention_decode_task_workspace": "tasks",
    "norm_eps": "rope",
    "register": "install",
    "rope_norm_store_kv": "rope",
    "rope_norm_store_kv_fp8": "rope",
    "set_norm_eps": "rope",
}

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
    "register",
    "rope_norm_store_kv",
    "rope_norm_store_kv_fp8",
    "set_norm_eps",
]


def missing(name: str) -> AttributeError:
    """The error for a name that the interface may have elsewhere, and this module has not."""
    if name.startswith("__"):
        return AttributeError(f"module 'hpc' has no attribute '{name}'")
    calls = ", ".join(call for call in __all__ if "_" in call)
    return AttributeError(
        f"module 'hpc' has no attribute '{name}': this is hpcattn's drop-in, which answers "
        f"attention and its prologue alone ({calls}). For '{name}' install the library that has "
        "it, in a Python environment without this one's `hpc`."
    )


def __getattr__(name: str) -> Any:
    """Looks a call up at its first use and keeps it."""
    if name not in _HOME:
        raise missing(name)
    if _HOME[name] not in ("install", "quant"):
        importlib.import_module("hpcattn._library").import_torch()
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
