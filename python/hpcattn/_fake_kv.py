# SPDX-License-Identifier: Apache-2.0
"""Fake implementations of the operators that write K and V."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from hpcattn._checks import FP8, INDEX, WIDE, Checks, cpp_name


def _check_cache(
    check: Checks, k: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
) -> None:
    """Two caches alike, that k can be written to."""
    for arg, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        check.shape(arg, cache, (None, None, k.shape[1], k.shape[2]))
        check.dtype(arg, cache, (k.dtype, *FP8))
        check.last_contiguous(arg, cache)
        check.written(arg, cache)
    check.shape("v_cache", v_cache, tuple(k_cache.shape))
    check.dtype("v_cache", v_cache, (k_cache.dtype,))
    check.head_dim(k.shape[2])
    check.page_size(k_cache.shape[1])


def store_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    """As the operator `store_kv`, without data."""
    check = Checks("store_kv", locals())
    check.shape("k", k, (None, None, None))
    check.shape("v", v, tuple(k.shape))
    check.dtype("k", k, WIDE)
    check.dtype("v", v, (k.dtype,))
    check.last_contiguous("k", k)
    check.last_contiguous("v", v)
    check.that(k.shape[1] > 0, "k has no heads, expected one or more.")
    _check_cache(check, k, k_cache, v_cache)
    check.tensor("slot_mapping", slot_mapping, (None,), INDEX)
    check.that(
        slot_mapping.shape[0] <= k.shape[0],
        f"slot_mapping has {slot_mapping.shape[0]} entries, expected at most k's {k.shape[0]} "
        "tokens.",
    )
    fp8 = k_cache.dtype in FP8
    check.scale("k_scale", k_scale, fp8, "k_cache", k.shape[1])
    check.scale("v_scale", v_scale, fp8, "v_cache", k.shape[1])


def _check_norm(
    check: Checks,
    norm_policy: str,
    norm_scope: str,
    norm_eps: float | None,
    head_dim: int,
    weights: Sequence[tuple[str, torch.Tensor | None, int]],
) -> None:
    check.one_of("norm_policy", norm_policy, ("none", "rope_then_norm", "norm_then_rope"))
    check.one_of("norm_scope", norm_scope, ("head", "token"))
    if norm_policy == "none":
        for arg, value in (("norm_eps", norm_eps), *((arg, weight) for arg, weight, _ in weights)):
            check.that(
                value is None,
                f"{arg} is given and norm_policy is none, so it would not be used. Leave it out, "
                "or choose a policy.",
            )
        return
    if norm_eps is None:
        check.that(False, "norm_eps is not given, needed for a norm_policy other than none.")
    else:
        check.that(
            math.isfinite(norm_eps) and norm_eps >= 0,
            f"norm_eps is {norm_eps}, expected a finite number of 0 or more.",
        )
    for arg, weight, num_heads in weights:
        if weight is None:
            check.that(False, f"{arg} is not given, needed for a norm.")
        size = head_dim * (num_heads if norm_scope == "token" else 1)
        check.tensor(arg, weight, (size,), (*WIDE, *FP8))


def _check_rotation(
    check: Checks,
    q: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor | None,
    mrope_section: Sequence[int] | None,
) -> None:
    num_tokens, _, head_dim = q.shape
    check.shape("cos_sin", cos_sin, (None, None))
    check.dtype("cos_sin", cos_sin, WIDE)
    check.last_contiguous("cos_sin", cos_sin)
    rotary_dim = cos_sin.shape[1]
    check.that(
        rotary_dim % 2 == 0,
        f"cos_sin has rotary_dim {rotary_dim}, expected an even number: its first half is cos, its "
        "second sin.",
    )
    check.that(
        rotary_dim <= head_dim,
        f"cos_sin has rotary_dim {rotary_dim}, over q's head_dim {head_dim}.",
    )
    section = list(mrope_section or ())
    check.that(
        mrope_section is None or len(section) == 3,
        f"mrope_section has {len(section)} entries, expected 3 (pairs that follow each of the "
        "three positions).",
    )
    shape: tuple[int, ...] = (num_tokens,)
    if any(section):
        shape = (3, num_tokens)
        check.that(
            min(section) >= 0 and sum(section) == rotary_dim // 2,
            f"mrope_section sums to {sum(section)}, expected {rotary_dim // 2}, rotary_dim / 2.",
        )
        check.that(
            positions is not None,
            f"mrope_section is given without positions, expected positions [3, {num_tokens}].",
        )
    check.tensor("positions", positions, shape, INDEX)


def _check_batch(
    check: Checks,
    q: torch.Tensor,
    positions: torch.Tensor | None,
    cu_seqlens_q: torch.Tensor | None,
    kv_lens: torch.Tensor | None,
    page_table: torch.Tensor | None,
    slot_mapping: torch.Tensor | None,
    has_cache: bool,
) -> None:
    """Enough to know each token's position and place."""
    check.tensor("slot_mapping", slot_mapping, (q.shape[0],), INDEX)
    places_from_pages = has_cache and slot_mapping is None
    if positions is None or places_from_pages:
        missing = "cu_seqlens_q" if cu_seqlens_q is None else "kv_lens"
        reason = "positions are not" if positions is None else "slot_mapping is not"
        check.that(
            cu_seqlens_q is not None and kv_lens is not None,
            f"{missing} is not given, needed where {reason}. Give cu_seqlens_q and kv_lens.",
        )
    check.that(
        not places_from_pages or page_table is not None,
        "page_table is not given, needed for a cache without slot_mapping.",
    )
    if cu_seqlens_q is None:
        alone = "kv_lens" if kv_lens is not None else "page_table"
        check.that(
            kv_lens is None and page_table is None,
            f"{alone} is given without cu_seqlens_q, expected both.",
        )
        return
    check.tensor("cu_seqlens_q", cu_seqlens_q, (None,), INDEX)
    num_requests = cu_seqlens_q.shape[0] - 1
    check.that(num_requests >= 0, "cu_seqlens_q is empty, expected [num_requests + 1].")
    check.tensor("kv_lens", kv_lens, (num_requests,), INDEX)
    check.tensor("page_table", page_table, (num_requests, None), INDEX)


def _check_out_q(
    check: Checks,
    q: torch.Tensor,
    out_q: torch.Tensor,
    q_scale: torch.Tensor | None,
    out_q_scale: torch.Tensor | None,
) -> None:
    check.tensor("out_q", out_q, tuple(q.shape), (q.dtype, torch.float8_e4m3fn))
    check.last_contiguous("out_q", out_q)
    check.written("out_q", out_q)
    if out_q.dtype in FP8:
        check.that(
            q_scale is not None or out_q_scale is not None,
            "out_q is float8_e4m3 and neither q_scale nor out_q_scale is given.",
        )
    else:
        check.that(
            q_scale is None and out_q_scale is None,
            f"{'out_q_scale' if q_scale is None else 'q_scale'} is given and out_q is "
            f"{cpp_name(q.dtype)}, so it would not be used. Leave it out, or give a float8_e4m3 "
            "out_q.",
        )
    check.tensor("q_scale", q_scale, (1,), (torch.float32,))
    check.tensor("out_q_scale", out_q_scale, tuple(q.shape[:2]), (torch.float32,))


def _check_kv_outputs(
    check: Checks,
    k: torch.Tensor,
    caches: tuple[torch.Tensor | None, torch.Tensor | None],
    outputs: tuple[torch.Tensor | None, torch.Tensor | None],
    scales: tuple[torch.Tensor | None, torch.Tensor | None],
) -> None:
    k_cache, v_cache = caches
    if k_cache is None or v_cache is None:
        check.that(
            k_cache is None and v_cache is None,
            f"{'v_cache' if k_cache is None else 'k_cache'} is given alone, expected k_cache and "
            "v_cache, or neither where nothing is stored.",
        )
    else:
        _check_cache(check, k, k_cache, v_cache)
    for letter, cache, output, scale in zip("kv", caches, outputs, scales, strict=True):
        if output is not None:
            stored = FP8 if cache is None else (cache.dtype,)
            check.tensor(f"out_{letter}", output, tuple(k.shape), (k.dtype, *stored))
            check.last_contiguous(f"out_{letter}", output)
            check.written(f"out_{letter}", output)
        fp8 = any(t is not None and t.dtype in FP8 for t in (cache, output))
        of = f"{letter}_cache and out_{letter}"
        check.scale(f"{letter}_scale", scale, fp8, of, k.shape[1])


def rope_norm_store_kv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos_sin: torch.Tensor,
    out_q: torch.Tensor,
    out_q_scale: torch.Tensor | None = None,
    out_k: torch.Tensor | None = None,
    out_v: torch.Tensor | None = None,
    k_cache: torch.Tensor | None = None,
    v_cache: torch.Tensor | None = None,
    cleared: torch.Tensor | None = None,
    *,
    style: str = "neox",
    positions: torch.Tensor | None = None,
    mrope_section: Sequence[int] | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    kv_lens: torch.Tensor | None = None,
    page_table: torch.Tensor | None = None,
    slot_mapping: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    q_scale: torch.Tensor | None = None,
    upper_max: float = 448.0,
    norm_policy: str = "none",
    norm_scope: str = "head",
    q_norm_weight: torch.Tensor | None = None,
    k_norm_weight: torch.Tensor | None = None,
    norm_eps: float | None = None,
) -> None:
    """As the operator `rope_norm_store_kv`, without data."""
    check = Checks("rope_norm_store_kv", locals())
    check.one_of("style", style, ("neox", "interleaved"))
    check.that(
        0 < upper_max <= 448,
        f"upper_max is {upper_max}, expected above 0 and at most 448, the largest float8_e4m3.",
    )
    check.shape("q", q, (None, None, None))
    check.dtype("q", q, WIDE)
    check.last_contiguous("q", q)
    num_tokens, num_heads, head_dim = q.shape
    check.shape("k", k, (num_tokens, None, head_dim))
    check.shape("v", v, tuple(k.shape))
    for arg, tensor in (("k", k), ("v", v)):
        check.dtype(arg, tensor, (q.dtype,))
        check.last_contiguous(arg, tensor)
    check.heads(q, "k", k)
    check.head_dim(head_dim)
    weights = (
        ("q_norm_weight", q_norm_weight, num_heads),
        ("k_norm_weight", k_norm_weight, k.shape[1]),
    )
    _check_norm(check, norm_policy, norm_scope, norm_eps, head_dim, weights)
    _check_rotation(check, q, cos_sin, positions, mrope_section)
    _check_out_q(check, q, out_q, q_scale, out_q_scale)
    if cleared is not None:
        check.dtype("cleared", cleared, (torch.int32,))
        check.that(
            cleared.is_contiguous(),
            "cleared has gaps between its entries, expected a contiguous tensor.",
        )
    _check_kv_outputs(check, k, (k_cache, v_cache), (out_k, out_v), (k_scale, v_scale))
    has_cache = k_cache is not None
    _check_batch(check, q, positions, cu_seqlens_q, kv_lens, page_table, slot_mapping, has_cache)
