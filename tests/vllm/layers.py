# SPDX-License-Identifier: Apache-2.0
"""Batches, caches and layers as the engine would make them, without an engine."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_interface import FullAttentionSpec

from hpcattn.integrations.vllm import capabilities, kv_views
from hpcattn.integrations.vllm.impl import HpcattnImpl
from hpcattn.integrations.vllm.metadata import HpcattnMetadataBuilder

PAGE_SIZE = 16
# How the dims [blocks, heads, tokens, content] of a layer lie in memory.
ORDERS = {"LBNHC": (0, 2, 1, 3), "LBHNC": (0, 1, 2, 3)}


@dataclass
class Batch:
    """Requests: how many query tokens each has, and how many KV tokens with them."""

    q_lens: list[int]
    kv_lens: list[int]
    padding: int = 0  # tokens at the end that belong to none

    @property
    def num_tokens(self) -> int:
        return sum(self.q_lens) + self.padding

    def common(self, **changes: Any) -> CommonAttentionMetadata:
        """vLLM's description; pages are dealt out backwards, block 0 is no one's."""
        starts = torch.tensor([0, *self.q_lens]).cumsum(0).int()
        pages = [-(-length // PAGE_SIZE) for length in self.kv_lens]
        table = torch.zeros(len(pages), max(pages), dtype=torch.int32)
        free = sum(pages)
        slots = []
        for row, count in enumerate(pages):
            table[row, :count] = torch.arange(free, free - count, -1)
            free -= count
            positions = torch.arange(self.kv_lens[row] - self.q_lens[row], self.kv_lens[row])
            slots.append(table[row, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE)
        slots.append(torch.full((self.padding,), -1))
        fields: dict[str, Any] = {
            "query_start_loc": starts,
            "query_start_loc_cpu": starts,
            "seq_lens": torch.tensor(self.kv_lens, dtype=torch.int32),
            "num_reqs": len(self.q_lens),
            "num_actual_tokens": self.num_tokens,
            "max_query_len": max(self.q_lens),
            "max_seq_len": max(self.kv_lens),
            "block_table_tensor": table,
            "slot_mapping": torch.cat(slots).long(),
        }
        return CommonAttentionMetadata(**{**fields, **changes})

    @property
    def positions(self) -> torch.Tensor:
        """`[num_tokens]`; 0 for padding."""
        rows = [torch.arange(kv - q, kv) for q, kv in zip(self.q_lens, self.kv_lens, strict=True)]
        return torch.cat([*rows, torch.zeros(self.padding, dtype=torch.long)])


def make_impl(dtype: torch.dtype = torch.float32, **options: Any) -> HpcattnImpl:
    """A layer's implementation in a model of `dtype`; 8 query heads, 2 KV heads of 64."""
    defaults: dict[str, Any] = {
        "num_heads": 8,
        "head_size": 64,
        "scale": 0.11,
        "num_kv_heads": 2,
    }
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return HpcattnImpl(**{**defaults, **options})
    finally:
        torch.set_default_dtype(before)


def make_layer(impl: HpcattnImpl, k_scale: float = 1.0, v_scale: float = 1.0) -> Any:
    """What of vLLM's layer an implementation sees."""
    scales = {"_q_scale": 1.0, "_k_scale": k_scale, "_v_scale": v_scale}
    return SimpleNamespace(
        impl=impl, **{name: torch.tensor(value) for name, value in scales.items()}
    )


def make_cache(
    impl: HpcattnImpl, num_blocks: int, order: str = "LBNHC", as_bytes: bool = True
) -> torch.Tensor:
    """A layer's cache, all NaN; a float8 one as the engine has it, in bytes."""
    shape = (num_blocks, impl.num_kv_heads, PAGE_SIZE, 2 * impl.head_size)
    permutation = ORDERS[order]
    memory = torch.full([shape[axis] for axis in permutation], torch.nan).to(impl.kv_dtype)
    if impl.is_fp8 and as_bytes:
        memory = memory.view(torch.uint8)
    return memory.permute([permutation.index(axis) for axis in range(4)])


def make_config(layers: dict[str, Any], **changes: Any) -> Any:
    """What of vLLM's configuration a builder reads."""
    fields: dict[str, Any] = {
        "compilation_config": SimpleNamespace(static_forward_context=layers),
        "speculative_config": None,
        "parallel_config": SimpleNamespace(decode_context_parallel_size=1),
        "scheduler_config": SimpleNamespace(max_num_seqs=8, max_num_batched_tokens=256),
        "model_config": SimpleNamespace(max_model_len=1024),
        "use_v2_model_runner": False,
    }
    return SimpleNamespace(**{**fields, **changes})


def make_builder(*impls: HpcattnImpl, **changes: Any) -> HpcattnMetadataBuilder:
    """A builder of a group with these layers."""
    layers = {f"layers.{number}": make_layer(impl) for number, impl in enumerate(impls)}
    spec = FullAttentionSpec(
        block_size=changes.pop("block_size", PAGE_SIZE),
        num_kv_heads=impls[0].num_kv_heads,
        head_size=impls[0].head_size,
        dtype=impls[0].kv_dtype,
    )
    return HpcattnMetadataBuilder(
        spec, list(layers), make_config(layers, **changes), torch.device("cpu")
    )


def fill_cache(
    impl: HpcattnImpl, layer: Any, cache: torch.Tensor, batch: Batch, seed: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Writes all KV tokens of the batch, by the implementation; K and V as they lie there."""
    whole = Batch(batch.kv_lens, batch.kv_lens).common()
    torch.manual_seed(seed)
    shape = (sum(batch.kv_lens), impl.num_kv_heads, impl.head_size)
    k, v = torch.randn(shape).to(impl.dtype), torch.randn(shape).to(impl.dtype)
    impl.do_kv_cache_update(layer, k, v, cache, whole.slot_mapping)
    return kv_views.split(
        cache, impl.head_size, capabilities.kv_dtype(impl.kv_cache_dtype, k.dtype)
    )
