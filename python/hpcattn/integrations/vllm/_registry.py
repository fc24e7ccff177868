# SPDX-License-Identifier: Apache-2.0
"""Puts the backend's classes under names of vLLM's registry."""

from __future__ import annotations

from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from hpcattn.integrations.vllm import _versions

_MODULE = "hpcattn.integrations.vllm.backend"
GPU_PATH = f"{_MODULE}.HpcattnBackend"
CPU_PATH = f"{_MODULE}.HpcattnCpuBackend"


def register(*, cpu: bool) -> None:
    """Registers CUSTOM, unless another plugin has, and with `cpu` CPU_ATTN."""
    custom = AttentionBackendEnum.CUSTOM
    if custom.is_overridden() and custom.get_path() != GPU_PATH:
        _versions.logger().warning(
            "hpcattn: the attention backend CUSTOM is %s already, and stays it. Name the plugins to"
            " load by VLLM_PLUGINS to have hpcattn there.",
            custom.get_path(),
        )
    else:
        register_backend(custom, GPU_PATH)
    if cpu:
        register_backend(AttentionBackendEnum.CPU_ATTN, CPU_PATH)
