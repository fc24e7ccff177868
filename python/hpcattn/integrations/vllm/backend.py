# SPDX-License-Identifier: Apache-2.0
"""The backend's classes: what vLLM's selector asks, answered with reasons."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, MultipleOf

from hpcattn.integrations.vllm import capabilities
from hpcattn.integrations.vllm._versions import CacheLayout
from hpcattn.integrations.vllm.impl import HpcattnImpl
from hpcattn.integrations.vllm.metadata import HpcattnMetadata, HpcattnMetadataBuilder


class HpcattnBackend(CacheLayout, AttentionBackend):
    """On a GPU, as `--attention-backend CUSTOM`."""

    device: ClassVar[str] = "cuda"
    accept_output_buffer: bool = True
    # The engine writes K and V by a call of its own, so its fusion passes can take that over.
    forward_includes_kv_cache_update: bool = False
    # `forward` reads K and V from pages alone, so they may be left out where a pass wrote them.
    supports_kv_cache_update_bypass: bool = True
    supported_dtypes: ClassVar[list[torch.dtype]] = capabilities.dtypes("cuda")
    supported_kv_cache_dtypes: ClassVar[list[str]] = list(capabilities.KV_CACHE_DTYPES)

    @staticmethod
    def get_name() -> str:
        """The name in vLLM's registry, by which its layers look this class up."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[HpcattnImpl]:
        """The class that computes a layer."""
        return HpcattnImpl

    @staticmethod
    def get_metadata_cls() -> type[HpcattnMetadata]:
        """The class of a step's metadata."""
        return HpcattnMetadata

    @staticmethod
    def get_builder_cls() -> type[HpcattnMetadataBuilder]:
        """The class that builds it."""
        return HpcattnMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[MultipleOf]:
        """Any multiple of a few tokens."""
        return [MultipleOf(capabilities.page_size_multiple())]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        """Head dims of the operators."""
        return capabilities.head_dims()

    @classmethod
    def supports_sink(cls) -> bool:
        """Sinks are applied."""
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """Windows are applied."""
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        """Rows may see later positions of the pages."""
        return True

    @classmethod
    def supports_per_head_quant_scales(cls) -> bool:
        """K and V may have a scale for each KV head."""
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        """KV is cut at fixed places then, whatever the batch."""
        return True

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        """All four."""
        return capabilities.attn_type_reason(str(getattr(attn_type, "value", attn_type))) is None

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        """From 8.0 on."""
        return capabilities.compute_capability_reason(_pair(capability)) is None

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: str | None,
        *more: Any,
        **asked: Any,
    ) -> str | None:
        """Why what is supported one by one is not together."""
        return capabilities.combination_reason(dtype, kv_cache_dtype)

    @classmethod
    def validate_configuration(cls, **asked: Any) -> list[str]:
        """Every reason against a configuration, with what came and what is expected."""
        named = {
            "head_size not supported": capabilities.head_size_reason(asked["head_size"]),
            "dtype not supported": capabilities.dtype_reason(asked["dtype"], cls.device),
            "kv_cache_dtype not supported": capabilities.kv_cache_dtype_reason(
                asked["kv_cache_dtype"]
            ),
            "block_size not supported": capabilities.block_size_reason(asked["block_size"]),
            "compute capability not supported": capabilities.compute_capability_reason(
                _pair(asked["device_capability"])
            ),
        }
        reasons: list[str] = super().validate_configuration(**asked)
        return [named.get(reason) or reason for reason in reasons]


class HpcattnCpuBackend(HpcattnBackend):
    """On the CPU, under the name of the one backend that vLLM takes there."""

    device: ClassVar[str] = "cpu"
    supported_dtypes: ClassVar[list[torch.dtype]] = capabilities.dtypes("cpu")

    @staticmethod
    def get_name() -> str:
        """As above."""
        return "CPU_ATTN"


def _pair(capability: Any) -> tuple[int, int] | None:
    """A GPU's compute capability as a plain pair; None where there is no GPU."""
    return None if capability is None else (int(capability[0]), int(capability[1]))
