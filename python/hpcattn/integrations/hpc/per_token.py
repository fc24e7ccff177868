# SPDX-License-Identifier: Apache-2.0
"""FP8 attention whose K has a scale for each token and head (quantisation type 0).

No kernel takes such scales. The pages that the table names are widened (bfloat16 on a GPU, float32
on the CPU) and attention runs over those. It is right, and it is slow: every entry of the table is
read, so its time and memory follow from the table's size and not from the lengths.
"""

from __future__ import annotations

import torch

from hpcattn.integrations.hpc.scales import k_scales_of_pages


def check_k_scale(op: str, k_scale: torch.Tensor, k_cache: torch.Tensor) -> None:
    """Whether the scales are those of this cache's pages.

    Raises:
        ValueError: They are not, or it is no cache.
    """
    if k_cache.dim() != 4:
        raise ValueError(f"{op}: kcache has rank {k_cache.dim()}, expected 4.")
    num_pages, page_size, num_heads, _ = k_cache.shape
    fits = (
        k_scale.dim() == 4
        and k_scale.shape[0] == num_pages
        and k_scale.shape[2] == num_heads
        and (k_scale.dtype == torch.float32 or k_scale.dtype.itemsize == 1)
        and k_scale.shape[1] * k_scale.shape[3] * k_scale.dtype.itemsize == 4 * page_size
    )
    if not fits:
        raise ValueError(
            f"{op}: kscale is {k_scale.dtype} of shape {list(k_scale.shape)}, expected for quant "
            f"type 0: float32 [1] or [{num_heads}], or the scales of each token and head, "
            f"[{num_pages}, rows, {num_heads}, columns] with {page_size} floats a page and head "
            "(float32, or their bytes as float8_e4m3fn)."
        )


def widen(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    q_scale: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, a K and a V cache without scales, and the page table of these caches.

    Args:
        q: `[num_tokens, num_q_heads, head_dim]` float8.
        k_cache: `[num_pages, page_size, num_kv_heads, head_dim]` float8.
        v_cache: As `k_cache`.
        page_table: `[num_requests, max_pages]` int32; unused entries may be any number.
        q_scale: `[num_tokens, num_q_heads]`.
        k_scale: As `check_k_scale` wants it.
        v_scale: `[1]` or `[num_kv_heads]`.
    """
    _, page_size, num_heads, _ = k_cache.shape
    wide = torch.float32 if q.device.type == "cpu" else torch.bfloat16
    pages = page_table.reshape(-1).clamp(0, max(k_cache.shape[0] - 1, 0)).long()

    def of_pages(cache: torch.Tensor) -> torch.Tensor:
        # As bytes: indexing is not there for every float8 on every device.
        return cache.view(torch.uint8)[pages].view(cache.dtype).to(torch.float32)

    k_scales = k_scales_of_pages(k_scale, pages, page_size, num_heads)
    k = (of_pages(k_cache) * k_scales[..., None]).to(wide)
    v = (of_pages(v_cache) * v_scale[:, None]).to(wide)
    own = torch.arange(pages.shape[0], dtype=torch.int32, device=q.device).view(page_table.shape)
    table = torch.where(page_table < 0, page_table, own)
    return (q.to(torch.float32) * q_scale[..., None]).to(wide), k, v, table
