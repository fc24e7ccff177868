# SPDX-License-Identifier: Apache-2.0
"""All that differs between the versions of vLLM, in one place.

- The KV cache's layout. To 0.28 a backend gives shape and stride order, for a layout ("NHD" or
  "HND") that holds in the whole process. From 0.29 on it lists the layouts that it takes, and the
  engine chooses one for all. Both lay a layer's cache out as `[num_blocks, num_kv_heads,
  block_size, 2 * head_size]` logically, K before V, whatever the memory order.
- What combines partial results over ranks lies in `ops.common` to 0.28, then in `ops.dcp`.
"""

from __future__ import annotations

import functools
import re
from typing import Any

# Of 0.x. A version outside was never read: its interface may be another.
FIRST, LAST = 26, 33
_LAYOUTS_LISTED = 29


def installed() -> str:
    """The version of vLLM as it says itself; distributions of several names carry it."""
    import vllm

    return str(getattr(vllm, "__version__", "unknown"))


def _minor(version: str) -> int | None:
    """26 of "0.26.1+cu130"; None where it is no 0.x."""
    match = re.match(r"0\.(\d+)(?:\.|$)", version)
    return None if match is None else int(match[1])


def refusal(version: str | None = None) -> str | None:
    """Why this version of vLLM is not served; None where it is."""
    version = installed() if version is None else version
    minor = _minor(version)
    if minor is not None and FIRST <= minor <= LAST:
        return None
    return (
        f"hpcattn: vLLM is {version}, expected 0.{FIRST} to 0.{LAST}: its backend interface changes"
        " between versions, so nothing was registered. Install one of these, or a newer hpcattn."
    )


@functools.cache
def warn_once() -> None:
    """Logs the refusal, at the first call in a process."""
    logger().warning("%s", refusal())


@functools.cache
def say_once_why_unfused() -> None:
    """Logs that the prologue runs unfused, and why; in a process once."""
    from vllm.platforms import current_platform

    if not current_platform.is_rocm():
        logger().info(
            "hpcattn computes attention. QK-norm, RoPE and KV write run unfused: vLLM %s switches"
            " its passes fuse_qk_norm_rope_kvcache and fuse_rope_kvcache off on %s.",
            installed(),
            current_platform.device_type,
        )


def logger() -> Any:
    """A logger that vLLM's own configuration shows."""
    from vllm.logger import init_logger

    return init_logger("vllm.hpcattn")


def lists_layouts(version: str | None = None) -> bool:
    """Whether a backend lists the memory orders that it takes, rather than giving one."""
    return (_minor(installed() if version is None else version) or 0) >= _LAYOUTS_LISTED


def stride_order(layout: str, with_layers: bool) -> tuple[int, ...]:
    """The memory order of `[layers,] num_blocks, num_kv_heads, block_size, 2 * head_size`.

    Args:
        layout: "NHD", tokens outside of heads, or "HND".
        with_layers: Whether a dim of layers comes first; blocks then lie outside of it, so that one
            block of all layers is one piece of memory.
    """
    if layout not in ("NHD", "HND"):
        raise ValueError(f"hpcattn: the KV cache layout is {layout!r}, expected 'NHD' or 'HND'.")
    if layout == "NHD":
        return (1, 0, 3, 2, 4) if with_layers else (0, 2, 1, 3)
    return (1, 2, 0, 3, 4) if with_layers else (0, 1, 2, 3)


class ShapeOfCache:
    """What a backend says of its cache before 0.29."""

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        """Logical shape of a layer's cache."""
        return (num_blocks, num_kv_heads, block_size, 2 * head_size)

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        """Memory order of that shape, for the layout that the process has chosen."""
        from vllm.v1.attention.backends.utils import get_kv_cache_layout

        return stride_order(get_kv_cache_layout(), include_num_layers_dimension)

    @classmethod
    def get_required_kv_cache_layout(cls) -> str | None:
        """None: strides carry the layout, any will do."""
        return None


class ListOfLayouts:
    """What a backend says of its cache from 0.29 on."""

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[Any, ...]:
        """All of them, best first: one token's heads beside each other read fastest."""
        from vllm.v1.kv_cache_layout import KVCacheLayout

        first = ("LBNHC", "BLNHC", "LBHNC", "BLHNC")
        best = [layout for name in first for layout in KVCacheLayout if layout.name == name]
        return (*best, *(layout for layout in KVCacheLayout if layout not in best))


CacheLayout: type = ListOfLayouts if lists_layouts() else ShapeOfCache


def combine_over_ranks() -> Any:
    """The engine's function that combines partial results of all ranks of a group by their LSE."""
    if lists_layouts():
        from vllm.v1.attention.ops.dcp import cp_lse_ag_out_rs
    else:
        from vllm.v1.attention.ops.common import cp_lse_ag_out_rs
    return cp_lse_ag_out_rs
