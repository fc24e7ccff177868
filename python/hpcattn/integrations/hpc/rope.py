# SPDX-License-Identifier: Apache-2.0
"""The fused prologue of the `hpc` interface, over `hpcattn.rope_norm_store_kv`."""

from __future__ import annotations

import math
import os
from typing import Literal

import torch

import hpcattn
from hpcattn.integrations.hpc.quant import QuantType, quant_type_of
from hpcattn.integrations.hpc.scales import padded, to_prefill_layout

_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_POLICIES: tuple[Literal["none", "rope_then_norm", "norm_then_rope"], ...] = (
    "none",
    "rope_then_norm",
    "norm_then_rope",
)
# What the interface has built in. Its calls can not pass another, so there is a setting.
_DEFAULT_EPS = 1e-6


def _checked_eps(eps: float, where: str) -> float:
    if not (math.isfinite(eps) and eps >= 0):
        raise ValueError(f"{where} is {eps}, expected a finite number of 0 or more.")
    return eps


def _eps_of_environment() -> float:
    text = os.environ.get("HPCATTN_HPC_NORM_EPS", "")
    if not text:
        return _DEFAULT_EPS
    try:
        eps = float(text)
    except ValueError:
        raise ValueError(f"HPCATTN_HPC_NORM_EPS is {text!r}, expected a number.") from None
    return _checked_eps(eps, "HPCATTN_HPC_NORM_EPS")


_norm_eps = _eps_of_environment()


def norm_eps() -> float:
    """The RMSNorm epsilon of all calls of this process."""
    return _norm_eps


def set_norm_eps(eps: float) -> float:
    """Sets the RMSNorm epsilon of all later calls of this process.

    The interface has 1e-6 built in and no argument for it; a model with another needs this, or
    HPCATTN_HPC_NORM_EPS in the environment. What a CUDA graph captured keeps its own.

    Args:
        eps: As in the model's config.

    Returns:
        What it was before.

    Raises:
        ValueError: Negative, infinite or NaN.
    """
    global _norm_eps
    before = _norm_eps
    _norm_eps = _checked_eps(eps, "set_norm_eps: eps")
    return before


def _split_qkv(
    op: str, qkv: torch.Tensor, key_cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v as views `[num_tokens, heads, head_dim]`."""
    if key_cache.dim() != 4 or qkv.dim() != 2:
        raise ValueError(
            f"{op}: key_cache has rank {key_cache.dim()} and qkv rank {qkv.dim()}, expected 4 and "
            "2."
        )
    num_kv_heads, head_dim = key_cache.shape[2:]
    heads, rest = divmod(qkv.shape[1], head_dim)
    if rest != 0 or heads <= 2 * num_kv_heads:
        raise ValueError(
            f"{op}: qkv has {qkv.shape[1]} columns, expected (q heads + 2 x {num_kv_heads} KV "
            f"heads) x {head_dim}, with one q head or more."
        )
    rows = qkv.view(qkv.shape[0], heads, head_dim)
    k_begin, v_begin = heads - 2 * num_kv_heads, heads - num_kv_heads
    return rows[:, :k_begin], rows[:, k_begin:v_begin], rows[:, v_begin:]


def _run(
    op: str,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    cos_sin: torch.Tensor,
    num_seqlen_per_req: torch.Tensor,
    q_index: torch.Tensor,
    kvcache_indices: torch.Tensor,
    *,
    q_norm_weight: torch.Tensor | None,
    k_norm_weight: torch.Tensor | None,
    out_q: torch.Tensor | None,
    out_k: torch.Tensor | None,
    out_v: torch.Tensor | None,
    qk_norm_policy: int,
    out_q_dtype: torch.dtype | None = None,
    q_scale: torch.Tensor | None = None,
    out_q_scale: torch.Tensor | None = None,
    cleared: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    upper_max: float = 448.0,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The operator on rows of q, k and v; K and V go to the pages, or to out_k and out_v."""
    policy = int(qk_norm_policy)
    if not 0 <= policy < len(_POLICIES):
        raise ValueError(
            f"{op}: qk_norm_policy is {policy}, expected 0 (none), 1 (RoPE then RMSNorm) or 2 "
            "(RMSNorm then RoPE)."
        )
    if (out_k is None) != (out_v is None):
        given, missing = ("out_k", "out_v") if out_v is None else ("out_v", "out_k")
        raise NotImplementedError(
            f"{op}: {given} is given without {missing}. Give both, and K and V go there instead of "
            "the pages, or neither."
        )
    to_pages = out_k is None
    q, k, v = rows
    targets = (key_cache, value_cache) if to_pages else (out_k, out_v)
    k_fp8, v_fp8 = (t is not None and t.dtype in _FP8 for t in targets)
    norms = policy != 0
    return hpcattn.rope_norm_store_kv(
        q,
        k,
        v,
        cos_sin,
        cu_seqlens_q=q_index,
        kv_lens=num_seqlen_per_req,
        page_table=kvcache_indices if to_pages else None,
        k_cache=key_cache if to_pages else None,
        v_cache=value_cache if to_pages else None,
        k_scale=k_scale if k_fp8 else None,
        v_scale=v_scale if v_fp8 else None,
        out_q=out_q,
        out_q_dtype=out_q_dtype if out_q is None else None,
        out_k=out_k,
        out_v=out_v,
        q_scale=q_scale,
        out_q_scale=out_q_scale,
        cleared=cleared,
        upper_max=upper_max,
        norm_policy=_POLICIES[policy],
        q_norm_weight=q_norm_weight if norms else None,
        k_norm_weight=k_norm_weight if norms else None,
        norm_eps=_norm_eps if norms else None,
    )


def rope_norm_store_kv(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    num_seqlen_per_req: torch.Tensor,
    q_index: torch.Tensor,
    kvcache_indices: torch.Tensor,
    is_prefill: bool,
    q_norm_weight: torch.Tensor | None = None,
    k_norm_weight: torch.Tensor | None = None,
    out_q: torch.Tensor | None = None,
    out_k: torch.Tensor | None = None,
    out_v: torch.Tensor | None = None,
    qk_norm_policy: int = 0,
) -> torch.Tensor:
    """RoPE (NeoX) and RMSNorm of q and k, and K and V into their pages.

    Args:
        key_cache: `[num_pages, page_size, num_kv_heads, head_dim]`, any strides.
        value_cache: As `key_cache`.
        qkv: `[num_tokens, (num_q_heads + 2 * num_kv_heads) * head_dim]`.
        cos_sin: `[max_position, rotary_dim]`, a first half of cosines, a second of sines.
        num_seqlen_per_req: `[num_requests]` int32, the new tokens included.
        q_index: `[num_requests + 1]` int32, where each request's tokens start.
        kvcache_indices: `[num_requests, max_pages]` int32.
        is_prefill: Not needed here: one kernel serves both.
        q_norm_weight: `[head_dim]` of any float dtype; used with a norm alone.
        k_norm_weight: Likewise.
        out_q: `[num_tokens, num_q_heads, head_dim]`; None: a new tensor.
        out_k: `[num_tokens, num_kv_heads, head_dim]`; with `out_v` it gets K instead of the pages.
        out_v: Likewise for V.
        qk_norm_policy: 0 none, 1 RoPE then RMSNorm, 2 RMSNorm then RoPE; epsilon: `norm_eps()`.

    Returns:
        `out_q`.

    Raises:
        ValueError: Shapes or dtypes that contradict the above. Nothing was written.
        NotImplementedError: `out_k` without `out_v`, or something that nothing computes. Nothing
            was written.
    """
    op = "rope_norm_store_kv"
    return _run(
        op,
        key_cache,
        value_cache,
        _split_qkv(op, qkv, key_cache),
        cos_sin,
        num_seqlen_per_req,
        q_index,
        kvcache_indices,
        q_norm_weight=q_norm_weight,
        k_norm_weight=k_norm_weight,
        out_q=out_q,
        out_k=out_k,
        out_v=out_v,
        qk_norm_policy=qk_norm_policy,
    )[0]


def rope_norm_store_kv_fp8(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    num_seqlen_per_req: torch.Tensor,
    q_index: torch.Tensor,
    kvcache_indices: torch.Tensor,
    is_prefill: bool,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    quant_policy: QuantType,
    max_seqlens: int = 0,
    upper_max: float | None = None,
    q_scale_inv: torch.Tensor | None = None,
    q_norm_weight: torch.Tensor | None = None,
    k_norm_weight: torch.Tensor | None = None,
    out_q: torch.Tensor | None = None,
    out_k: torch.Tensor | None = None,
    out_v: torch.Tensor | None = None,
    qk_norm_policy: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same with q as float8, and K and V as float8 where they are written to float8.

    Args:
        key_cache: As for `rope_norm_store_kv`, float8.
        value_cache: As `key_cache`.
        qkv: As for `rope_norm_store_kv`.
        cos_sin: As for `rope_norm_store_kv`.
        num_seqlen_per_req: As for `rope_norm_store_kv`.
        q_index: As for `rope_norm_store_kv`.
        kvcache_indices: As for `rope_norm_store_kv`.
        is_prefill: Which layout q's scales are handed out in.
        k_scale: `[1]` or `[num_kv_heads]` float32; what is stored is K / k_scale.
        v_scale: As `k_scale`, for V.
        quant_policy: 1: a scale of q for each token and head is computed; 2: `q_scale_inv`.
        max_seqlens: Query tokens of the longest request of a prefill; 0: any.
        upper_max: A computed scale is the largest magnitude divided by this; None: 448.
        q_scale_inv: `[1]` float32: what is stored is q * q_scale_inv; for policy 2.
        q_norm_weight: As for `rope_norm_store_kv`.
        k_norm_weight: As for `rope_norm_store_kv`.
        out_q: `[num_tokens, num_q_heads, head_dim]` float8_e4m3fn; None: a new tensor.
        out_k: As for `rope_norm_store_kv`; float8, or qkv's dtype and then unscaled.
        out_v: Likewise.
        qk_norm_policy: As for `rope_norm_store_kv`.

    Returns:
        `out_q`; q's scales float32: in a prefill `[num_requests, num_q_heads, max_seqlens padded to
        a multiple of 128]`, of which entries past a request's tokens have no meaning, else
        `[num_tokens, num_q_heads]`, for policy 2 empty; a workspace flag `[num_requests,
        num_kv_heads]` int32, zeros.

    Raises:
        ValueError: Shapes or dtypes that contradict the above, a request longer than `max_seqlens`
            (on the CPU; a GPU is not asked).
        NotImplementedError: A policy other than 1 and 2, `out_k` without `out_v`, or something that
            nothing computes.
    """
    op = "rope_norm_store_kv_fp8"
    kind = quant_type_of(op, "quant_policy", quant_policy, (1, 2))
    static = kind == QuantType.QPERTENSOR_KPERTENSOR_VPERTENSOR
    if static and q_scale_inv is None:
        raise ValueError(f"{op}: q_scale_inv is not given, needed for quant_policy 2.")
    if out_q is not None and out_q.dtype != torch.float8_e4m3fn:
        raise ValueError(f"{op}: out_q has dtype {out_q.dtype}, expected torch.float8_e4m3fn.")
    if max_seqlens < 0:
        raise ValueError(f"{op}: max_seqlens is {max_seqlens}, expected 0 or more.")
    longest = max_seqlens or qkv.shape[0]
    if is_prefill and not static and qkv.device.type == "cpu" and q_index.numel() > 1:
        most = int(q_index.diff().max())
        if most > padded(longest):
            raise ValueError(
                f"{op}: a request has {most} query tokens, over max_seqlens {max_seqlens}, padded "
                f"to {padded(longest)}."
            )
    q_scale = None
    if static:
        assert q_scale_inv is not None
        q_scale = q_scale_inv.reshape(1).reciprocal()
    rows = _split_qkv(op, qkv, key_cache)
    num_tokens, num_q_heads = rows[0].shape[:2]
    requests, num_kv_heads = q_index.shape[0] - 1, key_cache.shape[2]
    # Of one request, both layouts are strides.
    by_request = None
    if is_prefill and not static and requests == 1 and num_tokens <= padded(longest):
        by_request = qkv.new_empty(1, num_q_heads, padded(longest), dtype=torch.float32)
    # Of each call its own: other kernels count in it.
    split_flag = qkv.new_empty(requests, num_kv_heads, dtype=torch.int32)
    q, scales = _run(
        op,
        key_cache,
        value_cache,
        rows,
        cos_sin,
        num_seqlen_per_req,
        q_index,
        kvcache_indices,
        q_norm_weight=q_norm_weight,
        k_norm_weight=k_norm_weight,
        out_q=out_q,
        out_k=out_k,
        out_v=out_v,
        qk_norm_policy=qk_norm_policy,
        out_q_dtype=torch.float8_e4m3fn,
        q_scale=q_scale,
        out_q_scale=None if by_request is None else by_request[0, :, :num_tokens].t(),
        cleared=split_flag,
        k_scale=k_scale.reshape(1) if k_scale.dim() == 0 else k_scale,
        v_scale=v_scale.reshape(1) if v_scale.dim() == 0 else v_scale,
        upper_max=448.0 if upper_max is None else upper_max,
    )
    if scales is None:
        return q, torch.empty(0, dtype=torch.float32, device=qkv.device), split_flag
    if by_request is not None:
        scales = by_request
    elif is_prefill:
        scales = to_prefill_layout(scales, q_index, longest)
    return q, scales, split_flag
