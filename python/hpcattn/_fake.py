# SPDX-License-Identifier: Apache-2.0
"""Fake implementations: the operators' checks of shapes, dtypes and devices, without data.

Torch calls them for fake and meta tensors, so in tracing too. What is wrong by its shape is refused with
the same kind of error as in a real call; values (lengths, page ids, scales) only a real call can check.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from hpcattn._checks import Checks, cpp_name

_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_WIDE = (torch.float32, torch.float16, torch.bfloat16)
_INDEX = (torch.int32, torch.int64)


def _attention_options(
    check: Checks,
    q: torch.Tensor,
    kv: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    scale: float,
    window: int | None,
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
    q_scale: torch.Tensor | None,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    out_scale: torch.Tensor | None,
    plan: torch.Tensor | None,
) -> None:
    """What paged and packed attention check alike, after q, K and V themselves."""
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = kv.shape[-2]
    check.attention_dtypes(q, kv, out)
    check.head_dim(head_dim)
    check.that(
        num_kv_heads > 0 and num_heads % num_kv_heads == 0,
        f"q has {num_heads} heads and K and V have {num_kv_heads}, expected a multiple of them.",
    )
    check.shape("out", out, (num_tokens, num_heads, head_dim))
    check.last_contiguous("out", out)
    check.optional("lse", lse, (num_tokens, num_heads), (torch.float32,))
    check.that(math.isfinite(scale), f"scale is {scale}, expected a finite number.")
    check.that(window is None or window >= 1, f"window is {window}, expected 1 or more, or none.")
    check.that(
        math.isfinite(softcap) and softcap >= 0,
        f"softcap is {softcap}, expected 0 (none) or a finite number above it.",
    )
    check.optional("alibi_slopes", alibi_slopes, (num_heads,), (torch.float32,))
    check.optional("sinks", sinks, (num_heads,), _WIDE)
    if q_scale is not None:
        check.that(q.dtype in _FP8, f"q_scale is given, and q is {cpp_name(q.dtype)}, not float8.")
        check.dtype("q_scale", q_scale, (torch.float32,))
        if q_scale.dim() == 1:
            check.shape("q_scale", q_scale, (1,))
        else:
            check.shape("q_scale", q_scale, (num_tokens, num_heads))
    check.scale("k_scale", k_scale, num_kv_heads)
    check.scale("v_scale", v_scale, num_kv_heads)
    check.optional("out_scale", out_scale, (1,), (torch.float32,))
    check.that(
        (out_scale is not None) == (out.dtype in _FP8),
        f"out is {cpp_name(out.dtype)} {'with' if out_scale is not None else 'without'} out_scale; a "
        "float8 out needs it, any other takes none.",
    )
    check.optional("plan", plan, (None,), (torch.int32,))


def _paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    kv_lens: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    q_scale: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    out_scale: torch.Tensor | None = None,
    plan: torch.Tensor | None = None,
) -> None:
    check = Checks("paged_attention", locals())
    check.shape("q", q, (None, None, None))
    check.last_contiguous("q", q)
    check.shape("k_cache", k_cache, (None, None, None, q.shape[2]))
    check.same_shape("v_cache", v_cache, "k_cache", k_cache)
    check.last_contiguous("k_cache", k_cache)
    check.last_contiguous("v_cache", v_cache)
    check.page_size(k_cache.shape[1])
    check.shape("page_table", page_table, (None, None))
    check.dtype("page_table", page_table, (torch.int32,))
    check.lengths(cu_seqlens_q, kv_lens, page_table.shape[0])
    _attention_options(
        check, q, k_cache, out, lse, scale, window, softcap, alibi_slopes, sinks, q_scale, k_scale,
        v_scale, out_scale, plan,
    )  # fmt: skip


def _packed_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    q_scale: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    out_scale: torch.Tensor | None = None,
    plan: torch.Tensor | None = None,
) -> None:
    check = Checks("packed_attention", locals())
    check.shape("q", q, (None, None, None))
    check.last_contiguous("q", q)
    check.shape("k", k, (None, None, q.shape[2]))
    check.same_shape("v", v, "k", k)
    check.last_contiguous("k", k)
    check.last_contiguous("v", v)
    check.shape("cu_seqlens_q", cu_seqlens_q, (None,))
    check.dtype("cu_seqlens_q", cu_seqlens_q, (torch.int32,))
    check.same_shape("cu_seqlens_k", cu_seqlens_k, "cu_seqlens_q", cu_seqlens_q)
    check.dtype("cu_seqlens_k", cu_seqlens_k, (torch.int32,))
    _attention_options(
        check, q, k, out, lse, scale, window, softcap, alibi_slopes, sinks, q_scale, k_scale, v_scale,
        out_scale, plan,
    )  # fmt: skip


def _merge_partials(
    partials: Sequence[torch.Tensor],
    lses: Sequence[torch.Tensor],
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    check = Checks("merge_partials", locals())
    check.that(len(partials) > 0, "partials is empty, expected at least one.")
    check.that(
        len(partials) == len(lses),
        f"{len(partials)} partials and {len(lses)} lses, expected as many of each.",
    )
    first = partials[0]
    check.shape("partials[0]", first, (None, None, None))
    check.dtype("partials[0]", first, _WIDE)
    for i, (partial, partial_lse) in enumerate(zip(partials, lses, strict=True)):
        check.same_shape(f"partials[{i}]", partial, "partials[0]", first)
        check.dtype(f"partials[{i}]", partial, (first.dtype,))
        check.shape(f"lses[{i}]", partial_lse, tuple(first.shape[:2]))
        check.dtype(f"lses[{i}]", partial_lse, (torch.float32,))
    check.same_shape("out", out, "partials[0]", first)
    check.dtype("out", out, tuple(dict.fromkeys((first.dtype, torch.float32))))
    check.optional("lse", lse, tuple(first.shape[:2]), (torch.float32,))


def _store_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    check = Checks("store_kv", locals())
    check.shape("k", k, (None, None, None))
    check.same_shape("v", v, "k", k)
    check.dtype("v", v, (k.dtype,))
    check.stored_as("k", k, k_cache.dtype)
    check.cache(k_cache, v_cache, k.shape[1], k.shape[2])
    check.kv_scales(k_cache.dtype in _FP8, k_scale, v_scale, k.shape[1])
    check.shape("slot_mapping", slot_mapping, (None,))
    check.dtype("slot_mapping", slot_mapping, _INDEX)
    check.that(
        slot_mapping.shape[0] <= k.shape[0],
        f"slot_mapping has {slot_mapping.shape[0]} entries, over the {k.shape[0]} tokens of k.",
    )


def _rope_norm_store_kv(
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
    check = Checks("rope_norm_store_kv", locals())
    check.one_of("style", style, ("neox", "interleaved"))
    check.one_of("norm_policy", norm_policy, ("none", "rope_then_norm", "norm_then_rope"))
    check.one_of("norm_scope", norm_scope, ("head", "token"))
    check.shape("q", q, (None, None, None))
    check.dtype("q", q, _WIDE)
    num_tokens, num_heads, head_dim = q.shape
    check.shape("k", k, (num_tokens, None, head_dim))
    check.same_shape("v", v, "k", k)
    num_kv_heads = k.shape[1]
    for arg, tensor in (("k", k), ("v", v)):
        check.dtype(arg, tensor, (q.dtype,))
    check.shape("cos_sin", cos_sin, (None, None))
    check.dtype("cos_sin", cos_sin, _WIDE)
    rotary_dim = cos_sin.shape[1]
    check.that(
        rotary_dim % 2 == 0 and 0 < rotary_dim <= head_dim,
        f"cos_sin has rotary_dim {rotary_dim}, expected an even number up to head_dim {head_dim}.",
    )
    check.that(
        mrope_section is None or len(mrope_section) == 3,
        "mrope_section has not 3 entries (pairs that follow each of the three positions).",
    )
    if positions is not None:
        check.dtype("positions", positions, _INDEX)
        shape = (num_tokens,) if mrope_section is None or not any(mrope_section) else (3, num_tokens)
        check.shape("positions", positions, shape)
    if positions is None or (slot_mapping is None and k_cache is not None):
        check.that(
            cu_seqlens_q is not None and kv_lens is not None,
            "cu_seqlens_q and kv_lens are needed unless positions and slot_mapping are given.",
        )
    if cu_seqlens_q is not None and kv_lens is not None:
        check.lengths(cu_seqlens_q, kv_lens, kv_lens.shape[0] if kv_lens.dim() == 1 else None)
    check.optional("page_table", page_table, (None, None), (torch.int32,))
    if slot_mapping is not None:
        check.shape("slot_mapping", slot_mapping, (None,))
        check.dtype("slot_mapping", slot_mapping, _INDEX)
    check.that(
        (k_cache is None) == (v_cache is None),
        "k_cache and v_cache are given or left out together.",
    )
    written = [tensor.dtype for tensor in (out_k, out_v) if tensor is not None]
    if k_cache is not None and v_cache is not None:
        check.cache(k_cache, v_cache, num_kv_heads, head_dim)
        check.that(
            slot_mapping is not None or page_table is not None,
            "a cache is given without a place in it, expected slot_mapping or page_table.",
        )
        written.append(k_cache.dtype)
    for arg, tensor in (("out_k", out_k), ("out_v", out_v)):
        check.optional(arg, tensor, (num_tokens, num_kv_heads, head_dim), None)
    for dtype in written:
        check.stored_as("k", k, dtype)
    if any(dtype in _FP8 for dtype in written):
        check.kv_scales(True, k_scale, v_scale, num_kv_heads)
    check.shape("out_q", out_q, (num_tokens, num_heads, head_dim))
    check.dtype("out_q", out_q, (q.dtype, torch.float8_e4m3fn))
    check.optional("q_scale", q_scale, (1,), (torch.float32,))
    check.optional("out_q_scale", out_q_scale, (num_tokens, num_heads), (torch.float32,))
    check.that(
        out_q.dtype not in _FP8 or q_scale is not None or out_q_scale is not None,
        "out_q is float8_e4m3 without a scale, expected q_scale (given) or out_q_scale (computed).",
    )
    if norm_policy != "none":
        check.that(norm_eps is not None and norm_eps >= 0, f"norm_eps is {norm_eps}, expected 0 or more.")
        for arg, weight, heads in (
            ("q_norm_weight", q_norm_weight, num_heads),
            ("k_norm_weight", k_norm_weight, num_kv_heads),
        ):
            size = head_dim if norm_scope == "head" else heads * head_dim
            check.optional(arg, weight, (size,), _WIDE)


def _make_plan(
    cu_seqlens_q: torch.Tensor,
    kv_lens: torch.Tensor,
    plan: torch.Tensor,
    *,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    page_size: int,
    q_dtype: torch.dtype,
    kv_dtype: torch.dtype,
    causal: bool = True,
    window: int | None = None,
    fixed_split: int = 0,
) -> None:
    check = Checks("make_plan", locals())
    check.lengths(cu_seqlens_q, kv_lens, kv_lens.shape[0] if kv_lens.dim() == 1 else None)
    check.shape("plan", plan, (None,))
    check.dtype("plan", plan, (torch.int32,))
    check.that(
        num_kv_heads > 0 and num_q_heads % num_kv_heads == 0,
        f"the group has {num_q_heads} query heads and {num_kv_heads} KV heads, expected a multiple.",
    )
    check.head_dim(head_dim)
    if page_size != 0:
        check.page_size(page_size)
    check.that(window is None or window >= 1, f"window is {window}, expected 1 or more, or none.")


def register() -> None:
    """Gives torch the fake implementation of every operator that a graph may hold."""
    for fake in (
        _paged_attention,
        _packed_attention,
        _merge_partials,
        _store_kv,
        _rope_norm_store_kv,
        _make_plan,
    ):
        torch.library.register_fake(f"hpcattn::{fake.__name__.removeprefix('_')}", fake)


