# SPDX-License-Identifier: Apache-2.0
"""A right call of each operator, to be spoilt in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import hpcattn
from batches import caches, cumulative, int32, make_batch

Arguments = dict[str, Any]


def paged() -> Arguments:
    batch = make_batch(lengths=[(2, 20), (1, 9)])
    tensors, arguments = batch.paged()
    named = dict(zip(("q", "k_cache", "v_cache"), tensors, strict=True))
    return {**named, **arguments, "scale": 0.125, "out": torch.full_like(batch.q, 7.0)}


def packed() -> Arguments:
    lengths = {"cu_seqlens_q": cumulative([2, 1]), "cu_seqlens_k": cumulative([4, 5])}
    kv = torch.randn(9, 2, 64)
    out = torch.full((3, 4, 64), 7.0)
    return {
        "q": torch.randn(3, 4, 64),
        "k": kv,
        "v": kv.clone(),
        "scale": 0.1,
        "out": out,
        **lengths,
    }


def merge() -> Arguments:
    return {
        "partials": [torch.randn(3, 4, 64), torch.randn(3, 4, 64)],
        "lses": [torch.randn(3, 4), torch.randn(3, 4)],
        "out": torch.full((3, 4, 64), 7.0),
    }


def store() -> Arguments:
    k_cache, v_cache = caches(3, 8, 2, 64, torch.float32, "nhd")
    slots = torch.tensor([4, 20, -1])
    k = torch.randn(3, 2, 64)
    return {"k": k, "v": k * 2, "k_cache": k_cache, "v_cache": v_cache, "slot_mapping": slots}


def rope() -> Arguments:
    return {
        **store(),
        "q": torch.randn(3, 4, 64),
        "cos_sin": torch.randn(50, 64),
        "positions": torch.tensor([1, 2, 3]),
        "out_q": torch.full((3, 4, 64), 7.0),
    }


def plan() -> Arguments:
    group = hpcattn.AttentionGroup(4, 2, 64, 16, torch.float32, torch.float32)
    return {
        "group": group,
        "cu_seqlens_q": cumulative([2, 1]),
        "kv_lens": int32([20, 9]),
        "plan": torch.full((2000,), 7, dtype=torch.int32),
    }


CALLS: dict[Callable[[], Arguments], Callable[..., Any]] = {
    paged: hpcattn.paged_attention,
    packed: hpcattn.packed_attention,
    merge: hpcattn.merge_partials,
    store: hpcattn.store_kv,
    rope: hpcattn.rope_norm_store_kv,
    plan: hpcattn.plan_attention,
}


def change(**values: Any) -> Callable[[Arguments], None]:
    """Replaces arguments; a function gets the argument that it replaces."""

    def apply(arguments: Arguments) -> None:
        for name, value in values.items():
            arguments[name] = value(arguments.get(name)) if callable(value) else value

    return apply


def cast(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.to(dtype)


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same shape, with every second element of the last dim."""
    shape = (*tensor.shape[:-1], 2 * tensor.shape[-1])
    return tensor.new_zeros(shape)[..., ::2]
