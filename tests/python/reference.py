# SPDX-License-Identifier: Apache-2.0
"""The operators in float64, from their formulas, with plain loops over requests, heads and tokens.

Nothing here is shared with the library. Inputs are taken after rounding to their dtypes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

F64 = torch.float64


def _per_head(scale: torch.Tensor | None, num_heads: int) -> torch.Tensor:
    if scale is None:
        return torch.ones(num_heads, dtype=F64)
    return scale.to(F64).expand(num_heads)


def _one_request(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    exists: torch.Tensor,
    *,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One request; q [n, heads, D], k and v [m, kv_heads, D] in float64, exists [m]."""
    num_tokens, num_heads, _ = q.shape
    num_kv, num_kv_heads, _ = k.shape
    group = num_heads // num_kv_heads
    out = torch.zeros_like(q)
    lse = torch.full((num_tokens, num_heads), -math.inf, dtype=F64)
    keys = torch.arange(num_kv)
    for i in range(num_tokens):
        position = num_kv - num_tokens + i
        visible = exists.clone()
        if causal:
            visible &= keys <= position
        if window is not None:
            visible &= keys > position - window
            if not causal:
                visible &= keys < position + window
        for h in range(num_heads):
            scores = scale * (k[visible, h // group] @ q[i, h])
            if softcap > 0:
                scores = softcap * torch.tanh(scores / softcap)
            if alibi_slopes is not None:
                distance = (position - keys[visible]).abs().to(F64)
                scores = scores - float(alibi_slopes[h]) * distance
            logits = scores
            if sinks is not None:
                logits = torch.cat([scores, sinks[h].to(F64).reshape(1)])
            if logits.numel() == 0 or bool((logits == -math.inf).all()):
                continue
            lse[i, h] = torch.logsumexp(logits, 0)
            out[i, h] = torch.exp(scores - lse[i, h]) @ v[visible, h // group]
    return out, lse


def packed_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    q_scale: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    exists: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Out and LSE in float64. `exists` marks the keys that there are (left out: all)."""
    real_q = q.to(F64)
    if q_scale is not None:
        real_q = real_q * (q_scale.to(F64) if q_scale.dim() == 1 else q_scale.to(F64)[..., None])
    real_k = k.to(F64) * _per_head(k_scale, k.shape[1])[:, None]
    real_v = v.to(F64) * _per_head(v_scale, k.shape[1])[:, None]
    if exists is None:
        exists = torch.ones(k.shape[0], dtype=torch.bool)
    out = torch.zeros(q.shape, dtype=F64)
    lse = torch.full(q.shape[:2], -math.inf, dtype=F64)
    for r in range(cu_seqlens_q.numel() - 1):
        rows = slice(int(cu_seqlens_q[r]), int(cu_seqlens_q[r + 1]))
        keys = slice(int(cu_seqlens_k[r]), int(cu_seqlens_k[r + 1]))
        out[rows], lse[rows] = _one_request(
            real_q[rows],
            real_k[keys],
            real_v[keys],
            exists[keys],
            scale=scale,
            causal=causal,
            window=window,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
            sinks=sinks,
        )
    return out, lse


def gather(
    cache: torch.Tensor, page_table: torch.Tensor, kv_lens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The live tokens of a cache in order, one request after the other; cu_seqlens; which exist."""
    page_size = cache.shape[1]
    rows, exists = [], []
    for r in range(kv_lens.numel()):
        for j in range(int(kv_lens[r])):
            page = int(page_table[r, j // page_size])
            exists.append(page >= 0)
            rows.append(
                cache[max(page, 0), j % page_size] if page >= 0 else torch.zeros_like(cache[0, 0])
            )
    empty = cache.new_empty((0, *cache.shape[2:]))
    tokens = torch.stack(rows) if rows else empty
    cu_seqlens = torch.cat([torch.zeros(1, dtype=torch.int64), kv_lens.to(torch.int64).cumsum(0)])
    return tokens, cu_seqlens, torch.tensor(exists, dtype=torch.bool)


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    page_table: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    kv_lens: torch.Tensor,
    **options: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Out and LSE in float64."""
    k, cu_seqlens_k, exists = gather(k_cache, page_table, kv_lens)
    v, _, _ = gather(v_cache, page_table, kv_lens)
    return packed_attention(
        q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, exists=exists, **options
    )


def merge_partials(
    partials: Sequence[torch.Tensor], lses: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merged out and LSE in float64; a partial with -inf does not count, whatever it holds."""
    all_lse = torch.stack([lse.to(F64) for lse in lses])
    lse = torch.logsumexp(all_lse, 0)
    out = torch.zeros(partials[0].shape, dtype=F64)
    for partial, partial_lse in zip(partials, all_lse, strict=True):
        counts = partial_lse > -math.inf
        weight = torch.where(counts, torch.exp(partial_lse - lse), 0.0)
        out += torch.where(counts[..., None], partial.to(F64), 0.0) * weight[..., None]
    return out, lse


def quantize(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """To a float8 dtype, to nearest even and saturated; other dtypes as torch converts them."""
    if dtype.itemsize == 1:
        limit = torch.finfo(dtype).max
        x = x.to(torch.float32).clamp(-limit, limit)
    return x.to(dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, scope: str) -> torch.Tensor:
    """Over a head ([T, H, D], weight [D]), or over all heads of a token (weight [H * D])."""
    if scope == "head":
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.to(F64)
    mean = x.pow(2).mean((-2, -1), keepdim=True)
    return x / torch.sqrt(mean + eps) * weight.to(F64).reshape(x.shape[1:])


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, style: str) -> torch.Tensor:
    """x [T, H, D] by pairs; cos and sin [T, rotary_dim / 2] in float64."""
    half = cos.shape[1]
    result = x.clone()
    for pair in range(half):
        a, b = (pair, pair + half) if style == "neox" else (2 * pair, 2 * pair + 1)
        c, s = cos[:, pair, None], sin[:, pair, None]
        result[..., a] = x[..., a] * c - x[..., b] * s
        result[..., b] = x[..., b] * c + x[..., a] * s
    return result


def rope_norm(
    x: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    *,
    style: str = "neox",
    mrope_section: Sequence[int] | None = None,
    norm_policy: str = "none",
    norm_scope: str = "head",
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """q or k as the policy says, in float64. positions [T], or [3, T] with mrope_section."""
    half = cos_sin.shape[1] // 2
    rows = positions[None].expand(3, -1) if positions.dim() == 1 else positions
    which = torch.zeros(half, dtype=torch.long)
    if mrope_section is not None and any(mrope_section):
        which = torch.repeat_interleave(torch.arange(3), torch.tensor(list(mrope_section)))
    table = cos_sin.to(F64)
    at = rows.long()[which].T  # [T, half]: the position that each pair follows
    pairs = torch.arange(half)
    cos, sin = table[at, pairs], table[at, pairs + half]
    x = x.to(F64)
    if norm_policy == "norm_then_rope":
        x = rms_norm(x, weight, eps, norm_scope)
    x = rotate(x, cos, sin, style)
    if norm_policy == "rope_then_norm":
        x = rms_norm(x, weight, eps, norm_scope)
    return x
