# SPDX-License-Identifier: Apache-2.0
"""A layer's attention: the engine's calls -> hpcattn's operators."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.attention.backend import AttentionImpl

import hpcattn
from hpcattn import AttentionGroup
from hpcattn.integrations.vllm import capabilities, context_parallel, kv_views
from hpcattn.integrations.vllm.metadata import HpcattnMetadata
from hpcattn.integrations.vllm.prologue import FusedPrologue


class HpcattnImpl(FusedPrologue, AttentionImpl):  # type: ignore[type-arg,unused-ignore]
    """Attention of one layer.

    The engine has the cache written before `forward`, by `do_kv_cache_update` or by a fused
    prologue; a layer that shares another's KV is not asked to write.
    """

    can_return_lse_for_decode: bool = True
    supports_dcp: bool = True
    supports_pcp: bool = False
    # What lies on a rank is read by its length, whatever the interleaving.
    supports_mtp_with_cp_non_trivial_interleave_size: bool = True
    # A query of 16 bits is quantised in the kernel, by scales of each token and head.
    supports_quant_query_input: bool = False

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = "decoder",
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """As the engine's layer calls it.

        Args:
            num_heads: Query heads of this rank.
            head_size: Of K, and of V.
            scale: Multiplies q . k.
            num_kv_heads: KV heads of this rank; None: as `num_heads`.
            alibi_slopes: One for each query head.
            sliding_window: KV tokens that a row sees, its own included.
            kv_cache_dtype: As vLLM names it.
            logits_soft_cap: Cap of the scores; None or 0: none.
            attn_type: As vLLM names it.
            kv_sharing_target_layer_name: The layer whose KV this one reads.
            sinks: `[num_heads]` logits without a value.

        Raises:
            ValueError: Something that the operators do not take, with each reason.
        """
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.alibi_slopes = (
            None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        )
        self.sliding_window = sliding_window
        self.kv_cache_dtype = kv_cache_dtype
        self.softcap = float(logits_soft_cap or 0.0)
        self.attn_type = str(getattr(attn_type, "value", attn_type))
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks
        # While the engine makes a model this is the model's.
        self.dtype: torch.dtype = torch.get_default_dtype()
        self._check()
        self.kv_dtype = capabilities.kv_dtype(kv_cache_dtype, self.dtype)
        self.pages = kv_views.PageViews(head_size, self.kv_dtype)
        self._groups: dict[tuple[int, bool], AttentionGroup] = {}

    def _check(self) -> None:
        # The engine's CPU platform asks no backend what it takes, so the layer does.
        reasons = [
            capabilities.head_size_reason(self.head_size),
            capabilities.kv_cache_dtype_reason(self.kv_cache_dtype),
            capabilities.combination_reason(self.dtype, self.kv_cache_dtype),
            capabilities.attn_type_reason(self.attn_type),
        ]
        if self.num_heads % self.num_kv_heads != 0:
            reasons.append(
                f"{self.num_heads} query heads and {self.num_kv_heads} KV heads not supported,"
                " expected a multiple"
            )
        if self.sinks is not None and self.sinks.shape != (self.num_heads,):
            reasons.append(
                f"sinks of shape {list(self.sinks.shape)} not supported, expected"
                f" [{self.num_heads}]"
            )
        if self.dcp_world_size > 1:
            # Positions of a rank's share are not those of the request.
            for name, given in (("window", self.sliding_window), ("ALiBi", self.alibi_slopes)):
                if given is not None:
                    reasons.append(f"a {name} with decode context parallelism not supported")
        found = [reason for reason in reasons if reason is not None]
        if found:
            raise ValueError(f"hpcattn: {'; '.join(found)}.")

    @property
    def reads_pages(self) -> bool:
        """Whether attention is over the paged cache, not over the step's own K and V."""
        return self.attn_type not in ("encoder", "encoder_only")

    @property
    def is_fp8(self) -> bool:
        """Whether the cache holds float8, which needs scales."""
        return self.kv_dtype.itemsize == 1

    def group(self, page_size: int, causal: bool) -> AttentionGroup:
        """What this layer's plan is made for; layers alike in it share the plan."""
        if (page_size, causal) not in self._groups:
            self._groups[page_size, causal] = AttentionGroup(
                num_q_heads=self.num_heads,
                num_kv_heads=self.num_kv_heads,
                head_dim=self.head_size,
                page_size=page_size,
                q_dtype=self.dtype,
                kv_dtype=self.kv_dtype,
                causal=self._sees_past_alone(causal),
                window=self.sliding_window,
            )
        return self._groups[page_size, causal]

    def _sees_past_alone(self, causal: bool) -> bool:
        return causal and self.attn_type == "decoder"

    def kv_scales(self, layer: Any) -> dict[str, Any]:
        """`k_scale` and `v_scale` of a float8 cache, one or one a KV head; else nothing."""
        if not self.is_fp8:
            return {}
        return {"k_scale": layer._k_scale.reshape(-1), "v_scale": layer._v_scale.reshape(-1)}

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Writes new K and V; the engine calls it before `forward`."""
        if not self.reads_pages or kv_cache.numel() == 0:
            return
        k_cache, v_cache = self.pages.of(kv_cache)
        hpcattn.store_kv(key, value, k_cache, v_cache, slot_mapping, **self.kv_scales(layer))

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: torch.Tensor,
        attn_metadata: HpcattnMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of a step.

        Args:
            layer: The engine's layer; has the scales.
            query: `[num_tokens, num_heads, head_size]`.
            key: `[num_tokens, num_kv_heads, head_size]`; in the cache already.
            value: As `key`.
            kv_cache: `[num_blocks, num_kv_heads, block_size, 2 * head_size]`.
            attn_metadata: None while the engine measures its memory: the output becomes 0.
            output: `[num_tokens, num_heads, head_size]`; float8 with `output_scale`.
            output_scale: `[1]` float32: what is stored is output / output_scale.
            output_block_scale: Must be None.

        Returns:
            `output`; rows of padding are 0.

        Raises:
            NotImplementedError: `output_block_scale` is given.
        """
        if output_block_scale is not None:
            raise NotImplementedError(
                "hpcattn: output_block_scale is given, expected None: a fused output has one scale"
                " a tensor."
            )
        if attn_metadata is None:
            return output.zero_()
        out = output.view(-1, self.num_heads, self.head_size)
        if attn_metadata.cached_lens is not None:
            assert key is not None
            assert value is not None
            context_parallel.forward(self, layer, query, key, value, kv_cache, attn_metadata, out)
            return output
        options: dict[str, Any] = {
            "scale": self.scale,
            "causal": self._sees_past_alone(attn_metadata.causal),
            "window": self.sliding_window,
            "softcap": self.softcap,
            "alibi_slopes": self.alibi_slopes,
            "sinks": self.sinks,
            "q_scale": layer._q_scale.reshape(-1) if query.dtype.itemsize == 1 else None,
            "out_scale": None if output_scale is None else output_scale.reshape(-1),
            "out": out,
            "fixed_split": attn_metadata.fixed_split,
        }
        if self.reads_pages:
            self._over_pages(layer, query, kv_cache, attn_metadata, options)
        else:
            assert key is not None
            assert value is not None
            cu_seqlens = attn_metadata.query_start_loc
            hpcattn.packed_attention(
                query, key, value, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, **options
            )
        return output

    def _over_pages(
        self,
        layer: Any,
        query: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: HpcattnMetadata,
        options: dict[str, Any],
    ) -> None:
        k_cache, v_cache = self.pages.of(kv_cache)
        group = self.group(k_cache.shape[1], metadata.causal)
        hpcattn.paged_attention(
            query,
            k_cache,
            v_cache,
            page_table=metadata.block_table,
            cu_seqlens_q=metadata.query_start_loc,
            kv_lens=metadata.seq_lens,
            plan=metadata.plans.get(group) if query.dtype == self.dtype else None,
            **self.kv_scales(layer),
            **options,
        )

    def fused_output_quant_supported(self, quant_key: Any) -> bool:
        """Whether the attention call itself may quantise its output so: float8, one fixed scale."""
        from vllm.model_executor.layers.quantization.utils.quant_utils import kFp8StaticTensorSym

        return bool(quant_key == kFp8StaticTensorSym and self.dcp_world_size == 1)
