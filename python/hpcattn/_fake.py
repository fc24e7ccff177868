# SPDX-License-Identifier: Apache-2.0
"""Fake implementations: the operators' checks of shapes, dtypes and devices, without data.

Torch calls them for fake and meta tensors, so while it traces too. What is wrong by its shape is
refused with the same kind of error as in a real call; values (lengths, page ids, scales) only a
real call can check.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch

from hpcattn import _fake_kv, _library
from hpcattn._checks import FP8, WIDE, Checks, cpp_name, join_or


@dataclasses.dataclass
class _Options:
    """What paged and packed attention have alike."""

    scale: float
    window: int | None
    softcap: float
    alibi_slopes: torch.Tensor | None
    sinks: torch.Tensor | None
    q_scale: torch.Tensor | None
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None
    out_scale: torch.Tensor | None
    plan: torch.Tensor | None
    fixed_split: int


def _check_dtypes(
    check: Checks, q: torch.Tensor, k: torch.Tensor, k_arg: str, out: torch.Tensor
) -> None:
    table = _library.support()["attention"]
    row = table.get(cpp_name(q.dtype))
    if row is None or cpp_name(k.dtype) not in row["kv"] or cpp_name(out.dtype) not in row["out"]:
        supported = f"q {join_or(list(table))}"
        if row is not None:
            supported = (
                f"with a {cpp_name(q.dtype)} q: K and V {join_or(row['kv'])}, "
                f"out {join_or(row['out'])}"
            )
        check.unsupported(
            f"q has dtype {cpp_name(q.dtype)}, {k_arg} {cpp_name(k.dtype)}, out "
            f"{cpp_name(out.dtype)}; supported are: {supported}."
        )


def _check_attention(
    check: Checks,
    q: torch.Tensor,
    k_arg: str,
    k: torch.Tensor,
    v_arg: str,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    options: _Options,
) -> None:
    """Everything but the lengths and the pages."""
    check.shape("q", q, (None, None, None))
    num_tokens, num_heads, head_dim = q.shape
    check.last_contiguous("q", q)
    check.that(num_heads > 0, f"q has no heads ({list(q.shape)}).")
    check.head_dim(head_dim)
    paged = k_arg == "k_cache"
    check.shape(k_arg, k, (None, None, None, head_dim) if paged else (None, None, head_dim))
    check.shape(v_arg, v, tuple(k.shape))
    if paged:
        check.page_size(k.shape[1])
    check.shape("out", out, (num_tokens, num_heads, head_dim))
    check.last_contiguous("out", out)
    check.written("out", out)
    if lse is not None:
        check.tensor("lse", lse, (num_tokens, num_heads), (torch.float32,))
        check.written("lse", lse)
    check.last_contiguous(k_arg, k)
    check.last_contiguous(v_arg, v)
    check.heads(q, k_arg, k)
    check.that(
        k.dtype == v.dtype,
        f"{k_arg} has dtype {cpp_name(k.dtype)} and {v_arg} {cpp_name(v.dtype)}, expected one "
        "dtype for both.",
    )
    _check_dtypes(check, q, k, k_arg, out)
    if q.device.type == "cuda" and q.dtype == torch.float32:
        check.unsupported(
            "q has dtype float32 on a GPU, expected float16, bfloat16 or float8_e4m3. Run float32 "
            "on the cpu."
        )
    _check_options(check, q, k_arg, k, v_arg, out, options)


def _check_options(
    check: Checks,
    q: torch.Tensor,
    k_arg: str,
    k: torch.Tensor,
    v_arg: str,
    out: torch.Tensor,
    options: _Options,
) -> None:
    num_tokens, num_heads, _ = q.shape
    num_kv_heads = k.shape[-2]
    check.that(
        math.isfinite(options.scale),
        f"scale is {options.scale}, expected a finite number (1/sqrt(head_dim) in most models).",
    )
    check.that(
        math.isfinite(options.softcap) and options.softcap >= 0,
        f"softcap is {options.softcap}, expected 0 (none) or a finite number above it.",
    )
    check.that(
        options.window is None or options.window >= 1,
        f"window is {options.window}, expected 1 or more KV tokens; leave it out for none.",
    )
    check.tensor("alibi_slopes", options.alibi_slopes, (num_heads,), (torch.float32,))
    check.tensor("sinks", options.sinks, (num_heads,), WIDE)
    q_scale = options.q_scale
    if q.dtype in FP8:
        if q_scale is None:
            check.that(False, f"q_scale is not given, expected float32 [1] or {list(q.shape[:2])}.")
        else:
            shapes: dict[int, tuple[int | None, ...]] = {1: (1,), 3: (None, num_heads, None)}
            shape = shapes.get(q_scale.dim(), (num_tokens, num_heads))
            check.tensor("q_scale", q_scale, shape, (torch.float32,))
    else:
        check.that(
            q_scale is None,
            f"q_scale is given and q is {cpp_name(q.dtype)}; it goes with a float8 q. Leave it "
            "out.",
        )
    check.scale("k_scale", options.k_scale, k.dtype in FP8, k_arg, num_kv_heads)
    check.scale("v_scale", options.v_scale, k.dtype in FP8, v_arg, num_kv_heads)
    check.scale("out_scale", options.out_scale, out.dtype in FP8, "out", 1)
    check.tensor("plan", options.plan, (None,), (torch.int32,))
    check.fixed_split(options.fixed_split)


def _check_requests_of_scales(
    check: Checks, q_scale: torch.Tensor | None, num_requests: int
) -> None:
    if q_scale is not None and q_scale.dim() == 3:
        check.shape("q_scale", q_scale, (num_requests, None, None))


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
    fixed_split: int = 0,
) -> None:
    check = Checks("paged_attention", locals())
    options = _Options(
        scale,
        window,
        softcap,
        alibi_slopes,
        sinks,
        q_scale,
        k_scale,
        v_scale,
        out_scale,
        plan,
        fixed_split,
    )
    _check_attention(check, q, "k_cache", k_cache, "v_cache", v_cache, out, lse, options)
    check.tensor("kv_lens", kv_lens, (None,), (torch.int32,))
    check.tensor("cu_seqlens_q", cu_seqlens_q, (kv_lens.shape[0] + 1,), (torch.int32,))
    _check_requests_of_scales(check, q_scale, kv_lens.shape[0])
    check.tensor("page_table", page_table, (kv_lens.shape[0], None), (torch.int32,))


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
    fixed_split: int = 0,
) -> None:
    check = Checks("packed_attention", locals())
    options = _Options(
        scale,
        window,
        softcap,
        alibi_slopes,
        sinks,
        q_scale,
        k_scale,
        v_scale,
        out_scale,
        plan,
        fixed_split,
    )
    _check_attention(check, q, "k", k, "v", v, out, lse, options)
    check.tensor("cu_seqlens_k", cu_seqlens_k, (None,), (torch.int32,))
    check.tensor("cu_seqlens_q", cu_seqlens_q, (cu_seqlens_k.shape[0],), (torch.int32,))
    _check_requests_of_scales(check, q_scale, cu_seqlens_k.shape[0] - 1)


def _merge_partials(
    partials: Sequence[torch.Tensor],
    lses: Sequence[torch.Tensor],
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    check = Checks("merge_partials", locals())
    check.that(len(partials) > 0, "no partials are given, expected at least one.")
    check.that(
        len(partials) == len(lses),
        f"{len(lses)} lses and {len(partials)} partials are given, expected as many of each.",
    )
    first = partials[0]
    check.shape("partials[0]", first, (None, None, None))
    check.dtype("partials[0]", first, WIDE)
    shape = tuple(first.shape)
    for i, (partial, partial_lse) in enumerate(zip(partials, lses, strict=True)):
        check.tensor(f"partials[{i}]", partial, shape, (first.dtype,))
        check.last_contiguous(f"partials[{i}]", partial)
        check.tensor(f"lses[{i}]", partial_lse, shape[:2], (torch.float32,))
    check.tensor("out", out, shape, (first.dtype, torch.float32))
    check.last_contiguous("out", out)
    check.written("out", out)
    if lse is not None:
        check.tensor("lse", lse, shape[:2], (torch.float32,))
        check.written("lse", lse)


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
    check.that(
        min(num_q_heads, num_kv_heads, head_dim) > 0 and page_size >= 0,
        f"the group has {num_q_heads}:{num_kv_heads} heads, head_dim {head_dim} and page size "
        f"{page_size}, expected heads and a head_dim above 0.",
    )
    check.that(
        num_q_heads % num_kv_heads == 0,
        f"{num_q_heads} query heads are no multiple of {num_kv_heads} KV heads.",
    )
    check.that(window is None or window >= 1, f"window is {window}, expected 1 or more, or none.")
    check.tensor("kv_lens", kv_lens, (None,), (torch.int32,))
    check.tensor("cu_seqlens_q", cu_seqlens_q, (kv_lens.shape[0] + 1,), (torch.int32,))
    check.tensor("plan", plan, (None,), (torch.int32,))
    check.fixed_split(fixed_split)


def register() -> None:
    """Gives torch the fake implementation of every operator that a graph may hold."""
    fakes: dict[str, Callable[..., None]] = {
        "paged_attention": _paged_attention,
        "packed_attention": _packed_attention,
        "merge_partials": _merge_partials,
        "make_plan": _make_plan,
        "store_kv": _fake_kv.store_kv,
        "rope_norm_store_kv": _fake_kv.rope_norm_store_kv,
    }
    for name, fake in fakes.items():
        torch.library.register_fake(f"hpcattn::{name}", fake)
