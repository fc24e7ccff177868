# SPDX-License-Identifier: Apache-2.0
"""A step's metadata, and its builder: batch -> metadata, with a plan for each group of layers."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionCGSupport, AttentionMetadataBuilder
from vllm.v1.attention.backends.utils import split_decodes_and_prefills

import hpcattn
from hpcattn import AttentionGroup
from hpcattn.integrations.vllm import _versions, capabilities, context_parallel

if TYPE_CHECKING:
    from hpcattn.integrations.vllm.impl import HpcattnImpl

# KV tokens of a split where bits must not depend on the batch.
_FIXED_SPLIT = 1024


@dataclass
class HpcattnMetadata:
    """A step, as the layers of one KV cache group see it.

    One call serves decodes and prefills together, so the counts are for those who look.

    Attributes:
        num_actual_tokens: Query tokens, those that pad a CUDA graph's batch included.
        num_decodes: Requests at the front with at most the builder's threshold of query tokens.
        num_decode_tokens: Query tokens of them.
        num_prefills: All other requests.
        num_prefill_tokens: Query tokens of those.
        max_query_len: Of a request.
        max_seq_len: KV tokens of a request, or more.
        query_start_loc: `[num_requests + 1]` int32, where each request's query tokens start.
        seq_lens: `[num_requests]` int32 KV tokens, the new ones included.
        block_table: `[num_requests, max_blocks]` int32.
        slot_mapping: `[num_tokens]` int64, -1 is not written.
        causal: Whether a row sees no later position.
        fixed_split: As the operators take it.
        cached_lens: With decode context parallelism: `[num_requests]` int32, tokens that were
            cached before this step and lie on this rank.
        plans: For each group of like layers its plan; without one the call makes its own.
    """

    num_actual_tokens: int
    num_decodes: int
    num_decode_tokens: int
    num_prefills: int
    num_prefill_tokens: int
    max_query_len: int
    max_seq_len: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    causal: bool = True
    fixed_split: int = 0
    cached_lens: torch.Tensor | None = None
    plans: dict[AttentionGroup, torch.Tensor] = field(default_factory=dict)


class HpcattnMetadataBuilder(AttentionMetadataBuilder):  # type: ignore[type-arg,unused-ignore]
    """Builds the metadata of a step for the layers of one KV cache group.

    On a GPU plans lie in tensors of the builder's own, so that a captured graph finds them at the
    same address; they are made on the device from lengths that are there, and nothing waits.
    """

    # The plan follows the lengths of each replay, and one call serves any mixture of requests.
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.ALWAYS
    # Pages are no part of a plan.
    supports_update_block_table: bool = True
    supports_draft_decode_metadata_update: bool = True

    def __init__(
        self,
        kv_cache_spec: Any,
        layer_names: list[str],
        vllm_config: Any,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(
            1, supports_spec_as_decode=True, supports_dcp_with_varlen=True
        )
        self.page_size = int(kv_cache_spec.block_size)
        _check(kv_cache_spec)
        self.fixed_split = _FIXED_SPLIT if _batch_invariant() else 0
        self._persistent: dict[AttentionGroup, torch.Tensor] = {}
        self._ranks = max((impl.dcp_world_size for impl in self._impls()), default=1)
        self._cached_lens = torch.zeros(
            vllm_config.scheduler_config.max_num_seqs if self._ranks > 1 else 0,
            dtype=torch.int32,
            device=device,
        )
        _versions.say_once_why_unfused()

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> HpcattnMetadata:
        """The metadata of a step.

        Args:
            common_prefix_len: 0; see `use_cascade_attention`.
            common_attn_metadata: vLLM's description of the batch.
            fast_build: Leaves the plan to the calls of the few layers that there are.

        Raises:
            NotImplementedError: A cascade, or a causal flag for each request.
        """
        common = common_attn_metadata
        if common_prefix_len > 0:
            raise NotImplementedError(
                f"hpcattn: common_prefix_len is {common_prefix_len}, expected 0: a cascade is not"
                " made, since pages that requests share are read in place and from cache."
            )
        if isinstance(common.causal, torch.Tensor):
            raise NotImplementedError(
                "hpcattn: causal comes as a tensor, a flag for each request, expected one bool for"
                " all. Choose another attention backend for this model."
            )
        num_decodes, num_prefills, num_decode_tokens, num_prefill_tokens = (
            split_decodes_and_prefills(common, decode_threshold=self.reorder_batch_threshold or 1)
        )
        metadata = HpcattnMetadata(
            num_actual_tokens=common.num_actual_tokens,
            num_decodes=num_decodes,
            num_decode_tokens=num_decode_tokens,
            num_prefills=num_prefills,
            num_prefill_tokens=num_prefill_tokens,
            max_query_len=common.max_query_len,
            max_seq_len=common.max_seq_len,
            # An engine's buffers may go on past the step's requests.
            query_start_loc=common.query_start_loc[: common.num_reqs + 1],
            seq_lens=common.seq_lens[: common.num_reqs],
            block_table=common.block_table_tensor[: common.num_reqs],
            slot_mapping=common.slot_mapping,
            causal=bool(common.causal),
            fixed_split=self.fixed_split,
        )
        if self._ranks > 1:
            metadata.cached_lens = self._on_this_rank(metadata)
        elif not fast_build:
            for group in self._groups(metadata.causal):
                metadata.plans[group] = self._plan(group, metadata)
        return metadata

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> HpcattnMetadata:
        """As `build`: lengths are read at each replay, so those of the capture bind nothing."""
        return self.build(0, common_attn_metadata)

    def build_for_drafting(self, common_attn_metadata: Any, draft_index: int) -> HpcattnMetadata:
        """As `build` with `fast_build`: a draft model has few layers."""
        return self.build(0, common_attn_metadata, fast_build=True)

    def update_block_table(
        self, metadata: HpcattnMetadata, blk_table: torch.Tensor, slot_mapping: torch.Tensor
    ) -> HpcattnMetadata:
        """The same step over other pages; its plans serve these too."""
        updated = copy.copy(metadata)
        updated.block_table = blk_table
        updated.slot_mapping = slot_mapping
        return updated

    def update_draft_decode_metadata(self, metadata: HpcattnMetadata) -> None:
        """Plans anew, in place, for the lengths that the metadata's tensors have by now."""
        for group, plan in metadata.plans.items():
            hpcattn.plan_attention(
                group,
                metadata.query_start_loc,
                metadata.seq_lens,
                fixed_split=metadata.fixed_split,
                plan=plan,
            )

    def use_cascade_attention(self, *args: Any, **kwargs: Any) -> bool:
        """Never: shared pages are read in place, and the second reader finds them in cache."""
        return False

    def _groups(self, causal: bool) -> set[AttentionGroup]:
        """Groups of like layers among the builder's; mostly one."""
        return {impl.group(self.page_size, causal) for impl in self._impls() if impl.reads_pages}

    def _impls(self) -> list[HpcattnImpl]:
        layers = self.vllm_config.compilation_config.static_forward_context
        return [layers[name].impl for name in self.layer_names]

    def _on_this_rank(self, metadata: HpcattnMetadata) -> torch.Tensor:
        """Cached tokens of each request on this rank, at an address that stays."""
        lens = context_parallel.cached_lens(
            metadata,
            self._ranks,
            self._impls()[0].dcp_rank,
            self.vllm_config.parallel_config.cp_kv_cache_interleave_size,
        )
        place = self._cached_lens[: lens.shape[0]]
        place.copy_(lens)
        return place

    def _plan(self, group: AttentionGroup, metadata: HpcattnMetadata) -> torch.Tensor:
        return hpcattn.plan_attention(
            group,
            metadata.query_start_loc,
            metadata.seq_lens,
            fixed_split=self.fixed_split,
            plan=self._plan_tensor(group),
            num_tokens=metadata.num_actual_tokens,
            max_kv_len=metadata.max_seq_len,
        )

    def _plan_tensor(self, group: AttentionGroup) -> torch.Tensor | None:
        """On a GPU, where the plans of a group lie; the largest step fits."""
        if self.device.type == "cpu":
            return None  # sized for each step: no graph is captured there
        if group not in self._persistent:
            scheduler = self.vllm_config.scheduler_config
            words = hpcattn.plan_words(
                group,
                max_requests=scheduler.max_num_seqs,
                max_tokens=scheduler.max_num_batched_tokens,
                max_kv_len=self.vllm_config.model_config.max_model_len,
                fixed_split=self.fixed_split,
                device=self.device,
            )
            self._persistent[group] = torch.empty(words, dtype=torch.int32, device=self.device)
        return self._persistent[group]


def _check(spec: Any) -> None:
    """Refuses a cache that the operators do not read, while the engine starts."""
    reason = capabilities.block_size_reason(spec.block_size)
    if reason is not None:
        raise ValueError(f"hpcattn: {reason}. Set --block-size.")
    head_size_v = getattr(spec, "head_size_v", None)
    if head_size_v is not None and head_size_v != spec.head_size:
        raise NotImplementedError(
            f"hpcattn: V has head_size {head_size_v} and K {spec.head_size}, expected the same."
            " Choose another attention backend for this model."
        )


def _batch_invariant() -> bool:
    import vllm.envs

    return bool(vllm.envs.VLLM_BATCH_INVARIANT)
