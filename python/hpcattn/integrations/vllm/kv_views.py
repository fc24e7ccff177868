# SPDX-License-Identifier: Apache-2.0
"""The engine's KV cache of a layer as the operators take it. Knows nothing of vLLM."""

from __future__ import annotations

import weakref

import torch


def split(
    kv_cache: torch.Tensor, head_size: int, stored: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V as views, nothing is copied.

    Args:
        kv_cache: `[num_blocks, num_kv_heads, block_size, 2 * head_size]` in any memory order; each
            token and head has its K before its V.
        head_size: Of K, and of V.
        stored: The dtype of what lies there; bytes may stand for float8.

    Returns:
        K and V, each `[num_blocks, block_size, num_kv_heads, head_size]`.

    Raises:
        ValueError: Another shape or dtype.
    """
    if kv_cache.dim() != 4 or kv_cache.shape[3] != 2 * head_size:
        raise ValueError(
            f"hpcattn: the KV cache of a layer has shape {list(kv_cache.shape)}, expected"
            f" [num_blocks, num_kv_heads, block_size, {2 * head_size}] (K and V of head_size"
            f" {head_size})."
        )
    if kv_cache.dtype != stored:
        if kv_cache.dtype != torch.uint8 or stored.itemsize != 1:
            raise ValueError(
                f"hpcattn: the KV cache of a layer has dtype {kv_cache.dtype}, expected {stored}"
                + (" or torch.uint8." if stored.itemsize == 1 else ".")
            )
        kv_cache = kv_cache.view(stored)
    tokens_first = kv_cache.transpose(1, 2)
    return tokens_first[..., :head_size], tokens_first[..., head_size:]


class PageViews:
    """K and V of a layer's cache, split once for each cache that the engine gives the layer.

    The cache is not kept alive: an engine that frees it, to sleep or to make another, gets the
    memory back.
    """

    def __init__(self, head_size: int, stored: torch.dtype) -> None:
        self._head_size = head_size
        self._stored = stored
        self._of: weakref.ref[torch.Tensor] | None = None
        self._views: tuple[torch.Tensor, torch.Tensor] | None = None

    def of(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As `split`."""
        if self._views is None or self._of is None or self._of() is not kv_cache:
            self._views = split(kv_cache, self._head_size, self._stored)
            self._of = weakref.ref(kv_cache, self._forget)
        return self._views

    def _forget(self, gone: weakref.ref[torch.Tensor]) -> None:
        if gone is self._of:
            self._of = self._views = None


def split_qkv(
    qkv: torch.Tensor, num_heads: int, num_kv_heads: int, head_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A projection's output `[num_tokens, (q + 2 * kv heads) * head_size]` as q, K and V.

    Returns:
        Views `[num_tokens, heads, head_size]`.
    """
    heads = qkv.view(qkv.shape[0], num_heads + 2 * num_kv_heads, head_size)
    k_begin, v_begin = num_heads, num_heads + num_kv_heads
    return heads[:, :k_begin], heads[:, k_begin:v_begin], heads[:, v_begin:]
