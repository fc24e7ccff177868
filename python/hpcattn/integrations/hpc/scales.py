# SPDX-License-Identifier: Apache-2.0
"""The scales of q in a prefill's layout, and K's scales by token and head.

All of it is index arithmetic on the device: no length is read on the host.
"""

from __future__ import annotations

import torch

_PADDED_TO = 128


def padded(length: int) -> int:
    """Length of a request's row of scales."""
    return -(-length // _PADDED_TO) * _PADDED_TO


def to_prefill_layout(
    scales: torch.Tensor, cu_seqlens_q: torch.Tensor, max_seqlens: int
) -> torch.Tensor:
    """Scales `[num_tokens, num_heads]` as `[num_requests, num_heads, padded(max_seqlens)]`.

    Args:
        scales: One a token and head.
        cu_seqlens_q: `[num_requests + 1]` int32.
        max_seqlens: Query tokens of the longest request, or more.

    Returns:
        Contiguous; entries past a request's tokens are finite and have no meaning.
    """
    num_tokens, num_heads = scales.shape
    num_requests, width = cu_seqlens_q.shape[0] - 1, padded(max_seqlens)
    if num_tokens == 0:
        return scales.new_ones(num_requests, num_heads, width)
    steps = torch.arange(width, dtype=torch.int32, device=scales.device)
    tokens = (cu_seqlens_q[:-1, None] + steps).clamp_(0, num_tokens - 1)
    return scales[tokens.long()].transpose(1, 2).contiguous()


def from_prefill_layout(
    scales: torch.Tensor, cu_seqlens_q: torch.Tensor, num_tokens: int
) -> torch.Tensor:
    """The way back: `[num_requests, num_heads, width]` as `[num_tokens, num_heads]`.

    Args:
        scales: As `to_prefill_layout` gives them; any strides.
        cu_seqlens_q: `[num_requests + 1]` int32.
        num_tokens: Rows of q; those past the end of `cu_seqlens_q` get any scale.
    """
    num_requests, num_heads, width = scales.shape
    if num_requests == 0 or width == 0:
        return scales.new_ones(num_tokens, num_heads)
    starts = cu_seqlens_q.long()
    tokens = torch.arange(num_tokens, device=scales.device)
    # Requests without tokens share their start with the next one and are passed over.
    request = torch.searchsorted(starts[1:], tokens, right=True).clamp_(max=num_requests - 1)
    within = (tokens - starts[request]).clamp_(0, width - 1)
    return scales[request, :, within].contiguous()


def k_scales_of_pages(
    k_scale: torch.Tensor, pages: torch.Tensor, page_size: int, num_heads: int
) -> torch.Tensor:
    """K's scales by token and head, for some pages.

    Args:
        k_scale: `[num_pages, rows, num_heads, columns]`: a page's and head's `page_size` floats,
            row after row; float32, or their bytes as a one-byte dtype.
        pages: `[n]` int64.
        page_size: Tokens of a page.
        num_heads: KV heads.

    Returns:
        `[n, page_size, num_heads]` float32.
    """
    if k_scale.dtype.itemsize == 1:
        k_scale = k_scale.view(torch.uint8)
    of_pages = k_scale[pages].transpose(1, 2).contiguous()
    return of_pages.view(torch.float32).reshape(-1, num_heads, page_size).transpose(1, 2)
