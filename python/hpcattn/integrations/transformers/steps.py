# SPDX-License-Identifier: Apache-2.0
"""Page tables, slots and lengths of one step of continuous batching, for one group of layers.

They are made from Transformers' arguments at the first layer of a group and serve its other layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from hpcattn.integrations.transformers.plans import PlanCache

if TYPE_CHECKING:
    from transformers.generation.continuous_batching import PagedAttentionCache


@dataclass
class GroupStep:
    """A group that keeps all tokens.

    Attributes:
        slots: [tokens] where each new token is written; -1 for padding.
        page_table: [requests, pages] int32; -1 past a request's last page.
        cu_seqlens_q: [requests + 1] int32.
        kv_lens: [requests] int32, the new tokens included.
        plans: Plans that the group's layers share.
    """

    slots: Tensor
    page_table: Tensor
    cu_seqlens_q: Tensor
    kv_lens: Tensor
    plans: PlanCache = field(default_factory=PlanCache, kw_only=True)


@dataclass
class RingStep(GroupStep):
    """A sliding-window group. GroupStep's fields describe its requests of one token alone.

    Attributes:
        window: Tokens that a ring holds.
        decodes_only: Every request has one token, in the order of the step.
        decode_rows: Rows of the requests of one token, in a step that has others too.
        chunk_cu_seqlens_q: [all requests + 1] int32.
        chunk_cu_seqlens_k: The same, over the packed K that requests of several tokens read.
        cached_slots: Cached tokens to copy into that K; None where no such request has any.
        cached_places: Their places in it.
        new_places: The places of the step's new tokens in it.
    """

    window: int
    decodes_only: bool
    decode_rows: Tensor | None
    chunk_cu_seqlens_q: Tensor
    chunk_cu_seqlens_k: Tensor
    cached_slots: Tensor | None = None
    cached_places: Tensor | None = None
    new_places: Tensor | None = None


class _Steps:
    """The groups' steps that were made for one batch."""

    def __init__(self, batch: Tensor, capturing: bool) -> None:
        self.batch = ref(batch)
        self.version = batch._version
        self.capturing = capturing
        self.groups: dict[int, GroupStep] = {}

    def is_of(self, batch: Tensor, capturing: bool) -> bool:
        # Transformers refills the tensor below each step's view, which raises the version. A graph
        # is captured after a run of the same batch, and must make its own at each replay.
        same = self.batch() is batch and self.version == batch._version
        return same and self.capturing == capturing


_latest: WeakKeyDictionary[PagedAttentionCache, _Steps] = WeakKeyDictionary()


def step_of(cache: PagedAttentionCache, layer_idx: int, args: Mapping[str, Any]) -> GroupStep:
    """The step of `layer_idx`'s group; made once for each batch.

    Args:
        cache: The paged cache.
        layer_idx: A layer of the group.
        args: Continuous batching's arguments of the forward pass.
    """
    cu_seqlens_q = args["cu_seq_lens_q"]
    if cu_seqlens_q.is_inference():
        # Such a tensor has no version, by which a refilled one could be told.
        return _make(cache, layer_idx, args)
    capturing = _is_capturing(cu_seqlens_q)
    steps = _latest.get(cache)
    if steps is None or not steps.is_of(cu_seqlens_q, capturing):
        steps = _latest[cache] = _Steps(cu_seqlens_q, capturing)
    group_idx, _ = cache.layer_index_to_group_indices[layer_idx]
    if group_idx not in steps.groups:
        steps.groups[group_idx] = _make(cache, layer_idx, args)
    return steps.groups[group_idx]


def _is_capturing(batch: Tensor) -> bool:
    return batch.is_cuda and torch.cuda.is_current_stream_capturing()


def _make(cache: PagedAttentionCache, layer_idx: int, args: Mapping[str, Any]) -> GroupStep:
    group_idx, _ = cache.layer_index_to_group_indices[layer_idx]
    window = cache.sliding_windows[layer_idx]
    is_ring = window != 1
    cu_seqlens_k = _of_kind(args["cu_seq_lens_k"], is_ring)
    cu_seqlens_q = args["cu_seq_lens_q"].int()
    cu_seqlens_k = cu_seqlens_k.int()
    write_index, read_index = args["write_index"][group_idx], args["read_index"][group_idx]
    slots = torch.where(write_index >= cache.write_trash_index, -1, write_index)
    if is_ring:
        if _is_capturing(cu_seqlens_q):
            raise NotImplementedError(
                "hpcattn: a sliding-window layer reads the step's lengths on the host, which is not"
                " possible within a CUDA graph. Pass"
                " ContinuousBatchingConfig(use_cuda_graph=False), which is the default."
            )
        return _make_ring(
            cache, group_idx, window, cu_seqlens_q, cu_seqlens_k, slots, write_index, read_index
        )

    kv_lens = cu_seqlens_k.diff()
    # An empty read_index says that no request has anything in the cache yet.
    index, cu_seqlens = (
        (read_index, cu_seqlens_k) if read_index.numel() else (write_index, cu_seqlens_q)
    )
    page_size = cache.block_size
    # Told on the host, so nothing is read back from a GPU.
    pages = -(-_of_kind(args["max_seqlen_k"], is_ring) // page_size)
    offsets = torch.arange(pages, device=index.device) * page_size
    first_tokens = cu_seqlens[:-1, None] + offsets
    page_table = index[first_tokens.clamp_(max=index.numel() - 1)] // page_size
    page_table = torch.where(offsets < kv_lens[:, None], page_table, -1).int()
    return GroupStep(slots, page_table, cu_seqlens_q, kv_lens)


def _of_kind(values: Any, is_ring: bool) -> Any:
    """Of a model with both kinds of layers, what belongs to one of them."""
    if isinstance(values, dict):
        return values["sliding_attention" if is_ring else "full_attention"]
    return values


def _make_ring(
    cache: PagedAttentionCache,
    group_idx: int,
    window: int,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    slots: Tensor,
    write_index: Tensor,
    read_index: Tensor,
) -> RingStep:
    device = write_index.device
    # One transfer from a GPU: it waits for the stream.
    ends = cu_seqlens_q.numel()
    read_back = torch.cat([cu_seqlens_q, cu_seqlens_k, write_index]).tolist()
    q_starts, kv_starts, written = (
        read_back[:ends],
        read_back[ends : 2 * ends],
        read_back[2 * ends :],
    )
    q_lens = [end - start for start, end in pairwise(q_starts)]
    kv_lens = [end - start for start, end in pairwise(kv_starts)]
    decodes = [request for request, q_len in enumerate(q_lens) if q_len == 1]

    # A ring's pages, in its order, are those of the one request that owns the page written now.
    owned = cache.group_cache_managers[group_idx].block_table.values()
    owner = {page: pages for pages in owned for page in pages}
    rings = [owner[written[q_starts[request]] // cache.block_size] for request in decodes]
    page_table = torch.full((len(rings), max(map(len, rings), default=0)), -1, dtype=torch.int32)
    for row, ring in enumerate(rings):
        page_table[row, : len(ring)] = torch.tensor(ring, dtype=torch.int32)

    step = RingStep(
        slots=slots,
        page_table=page_table.to(device),
        cu_seqlens_q=torch.arange(len(decodes) + 1, dtype=torch.int32, device=device),
        kv_lens=torch.tensor([kv_lens[r] for r in decodes], dtype=torch.int32, device=device),
        window=window,
        decodes_only=len(decodes) == len(q_lens),
        decode_rows=None,
        chunk_cu_seqlens_q=cu_seqlens_q,
        chunk_cu_seqlens_k=cu_seqlens_q,
    )
    if decodes and not step.decodes_only:
        step.decode_rows = torch.tensor([q_starts[r] for r in decodes], device=device)
    if not step.decodes_only and read_index.numel():
        _add_cached(step, q_lens, kv_lens, read_index)
    return step


def _add_cached(step: RingStep, q_lens: list[int], kv_lens: list[int], read_index: Tensor) -> None:
    """Lays out the K that requests of several tokens read: each one's cached, then its new."""
    cached_read: list[int] = []  # places in read_index
    cached_places: list[int] = []
    new_places: list[int] = []
    cu_seqlens_k = [0]
    place = read = 0
    for q_len, kv_len in zip(q_lens, kv_lens, strict=True):
        cached = kv_len - q_len if q_len > 1 else 0
        cached_read += range(read, read + cached)
        cached_places += range(place, place + cached)
        new_places += range(place + cached, place + cached + q_len)
        place += cached + q_len
        read += kv_len
        cu_seqlens_k.append(place)
    if not cached_read:
        return
    device = read_index.device
    step.cached_slots = read_index[torch.tensor(cached_read, device=device)]
    step.cached_places = torch.tensor(cached_places, device=device)
    step.new_places = torch.tensor(new_places, device=device)
    step.chunk_cu_seqlens_k = torch.tensor(cu_seqlens_k, dtype=torch.int32, device=device)
