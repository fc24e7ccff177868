# SPDX-License-Identifier: Apache-2.0
"""hpcattn: paged attention for LLM serving.

The operators are functions of torch tensors (`hpcattn.paged_attention` and its neighbours), and
`torch.ops.hpcattn.*` below them. Importing this package imports neither torch nor the native
library, touches no GPU and starts no thread: both come with the first operator that is looked up,
and a process may fork before and after.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcattn._library import (
        call_counts,
        compilations,
        kernels,
        reset_call_counts,
        set_check_values,
    )
    from hpcattn._prepare import PrepareReport, prepare
    from hpcattn.ops import (
        merge_partials,
        packed_attention,
        paged_attention,
        rope_norm_store_kv,
        store_kv,
    )
    from hpcattn.plan import AttentionGroup, plan_attention, plan_summary, plan_words

    __version__: str

_HOME = {
    "call_counts": "hpcattn._library",
    "compilations": "hpcattn._library",
    "kernels": "hpcattn._library",
    "reset_call_counts": "hpcattn._library",
    "set_check_values": "hpcattn._library",
    "PrepareReport": "hpcattn._prepare",
    "prepare": "hpcattn._prepare",
    "merge_partials": "hpcattn.ops",
    "packed_attention": "hpcattn.ops",
    "paged_attention": "hpcattn.ops",
    "rope_norm_store_kv": "hpcattn.ops",
    "store_kv": "hpcattn.ops",
    "AttentionGroup": "hpcattn.plan",
    "plan_attention": "hpcattn.plan",
    "plan_summary": "hpcattn.plan",
    "plan_words": "hpcattn.plan",
}

__all__ = [
    "AttentionGroup",
    "PrepareReport",
    "__version__",
    "call_counts",
    "compilations",
    "kernels",
    "merge_partials",
    "packed_attention",
    "paged_attention",
    "plan_attention",
    "plan_summary",
    "plan_words",
    "prepare",
    "reset_call_counts",
    "rope_norm_store_kv",
    "set_check_values",
    "store_kv",
]


def __getattr__(name: str) -> Any:
    """Looks a public name up at its first use and keeps it."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("hpcattn")
    elif name in _HOME:
        # First, since it says what is wrong with a torch that is missing or too old.
        importlib.import_module("hpcattn._library").import_torch()
        value = getattr(importlib.import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'hpcattn' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
