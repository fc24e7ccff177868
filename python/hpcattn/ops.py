# SPDX-License-Identifier: Apache-2.0
"""The operators as functions of torch tensors.

They allocate what is not given and call `torch.ops.hpcattn.*`, whose outputs are arguments. All of
them may be called within `torch.compile(fullgraph=True)`. None computes gradients: a tensor that
requires grad is refused while grad mode is on. Tensors may have any strides, with the last dim
contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from hpcattn import _library
from hpcattn._errors import run

_ops = _library.load()


def _attention_out(
    q: torch.Tensor,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    out_scale: torch.Tensor | None,
    return_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The tensors that an attention call writes."""
    if out is None:
        if out_dtype is None:
            if out_scale is not None:
                out_dtype = torch.float8_e4m3fn
            else:
                out_dtype = torch.bfloat16 if q.dtype.itemsize == 1 else q.dtype
        out = q.new_empty(q.shape, dtype=out_dtype)
    elif out_dtype is not None and out_dtype != out.dtype:
        raise ValueError(
            f"attention: out has dtype {out.dtype} and out_dtype is {out_dtype}. Give one of the "
            "two."
        )
    lse = None
    if return_lse:
        lse = q.new_empty(q.shape[:2], dtype=torch.float32)
    return out, lse


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    page_table: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    kv_lens: torch.Tensor,
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
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    return_lse: bool = False,
    plan: torch.Tensor | None = None,
    fixed_split: int = 0,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention over a paged KV cache: decode, speculative rows, prefill and chunks, in one call.

    A request's query tokens are the last ones of its KV tokens, which are in the cache already.
    Query token i of n stands at position kv_len - n + i. Slots of a page past a request's length
    are never used, whatever they hold. A row that sees no key gives 0 and an LSE of -inf (with a
    sink: the sink).

    Args:
        q: `[num_tokens, num_q_heads, head_dim]` float32, float16, bfloat16 or float8_e4m3fn.
        k_cache: `[num_pages, page_size, num_kv_heads, head_dim]`, q's dtype, float8_e4m3fn or
            float8_e5m2; the strides carry the layout.
        v_cache: As `k_cache`; its strides may differ.
        page_table: `[num_requests, max_pages]` int32. Entries past a request's length are not read,
            the keys of a page -1 do not exist.
        cu_seqlens_q: `[num_requests + 1]` int32, from 0, not falling.
        kv_lens: `[num_requests]` int32, the new tokens included.
        scale: Multiplies q . k, for most models `head_dim ** -0.5`.
        causal: A row sees no later position.
        window: Number of KV tokens that a row sees, its own included; not causal: to either side.
        softcap: Scores become `softcap * tanh(score / softcap)`; 0: they do not.
        alibi_slopes: `[num_q_heads]` float32.
        sinks: `[num_q_heads]` float32, float16 or bfloat16; logits without a value.
        q_scale: float32 `[1]`, `[num_tokens, num_q_heads]`, or by request `[num_requests,
            num_q_heads, most_tokens]`, of which a request's own tokens are read; required for a
            float8 q, and for it alone.
        k_scale: float32 `[1]` or `[num_kv_heads]`, above 0; required for float8 K and V, and for
            them alone: real K = stored K * k_scale.
        v_scale: As `k_scale`, for V.
        out_scale: float32 `[1]`; required for a float8 out: stored = out / out_scale, saturated.
        out: `[num_tokens, num_q_heads, head_dim]` to write to; None: a new tensor.
        out_dtype: Of a new `out`. None: q's; for a float8 q bfloat16; with `out_scale`
            float8_e4m3fn.
        return_lse: Whether to return the natural log of each row's denominator.
        plan: From `plan_attention` for this group and batch; None: made in the call.
        fixed_split: As `plan_attention` got it for `plan`; without a plan: of the one made in the
            call.

    Returns:
        `out`; with `return_lse` also the LSE `[num_tokens, num_q_heads]` float32. Rows past the end
        of `cu_seqlens_q` are 0 and -inf.

    Raises:
        ValueError: Shapes, dtypes, devices or values contradict the above. Nothing was written.
        NotImplementedError: A head dim, page size or pair of dtypes that nothing computes, or a
            tensor that requires grad while grad mode is on. Nothing was written.
    """
    out, lse = _attention_out(q, out, out_dtype, out_scale, return_lse)
    run(
        _ops.paged_attention,
        q,
        k_cache,
        v_cache,
        page_table,
        cu_seqlens_q,
        kv_lens,
        out,
        lse,
        scale=scale,
        causal=causal,
        window=window,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        q_scale=q_scale,
        k_scale=k_scale,
        v_scale=v_scale,
        out_scale=out_scale,
        plan=plan,
        fixed_split=fixed_split,
    )
    return out if lse is None else (out, lse)


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
    out_scale: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    return_lse: bool = False,
    plan: torch.Tensor | None = None,
    fixed_split: int = 0,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention over K and V that lie like q, one request after the other, without pages.

    A request may have more KV tokens than query tokens; the query tokens are its last ones.

    Args:
        q: `[num_tokens, num_q_heads, head_dim]`; dtypes as for `paged_attention`.
        k: `[num_kv_tokens, num_kv_heads, head_dim]`.
        v: As `k`.
        cu_seqlens_q: `[num_requests + 1]` int32, from 0, not falling.
        cu_seqlens_k: `[num_requests + 1]` int32, likewise for K and V.
        scale: As for `paged_attention`.
        causal: As for `paged_attention`; False for an encoder.
        window: As for `paged_attention`.
        softcap: As for `paged_attention`.
        alibi_slopes: As for `paged_attention`.
        sinks: As for `paged_attention`.
        q_scale: As for `paged_attention`.
        k_scale: As for `paged_attention`.
        v_scale: As for `paged_attention`.
        out_scale: As for `paged_attention`.
        out: As for `paged_attention`.
        out_dtype: As for `paged_attention`.
        return_lse: As for `paged_attention`.
        plan: From `plan_attention` for a group of page size 0; None: made in the call.
        fixed_split: As for `paged_attention`.

    Returns:
        As `paged_attention`.

    Raises:
        ValueError: As `paged_attention`.
        NotImplementedError: As `paged_attention`.
    """
    out, lse = _attention_out(q, out, out_dtype, out_scale, return_lse)
    run(
        _ops.packed_attention,
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        out,
        lse,
        scale=scale,
        causal=causal,
        window=window,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        q_scale=q_scale,
        k_scale=k_scale,
        v_scale=v_scale,
        out_scale=out_scale,
        plan=plan,
        fixed_split=fixed_split,
    )
    return out if lse is None else (out, lse)


def merge_partials(
    partials: Sequence[torch.Tensor],
    lses: Sequence[torch.Tensor],
    *,
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merges attention over disjoint sets of KV tokens into attention over all of them.

    Args:
        partials: Each `[num_tokens, num_heads, head_dim]` float32, float16 or bfloat16, alike.
        lses: Each `[num_tokens, num_heads]` float32, natural log; a partial with -inf counts for
            nothing, whatever its output holds.
        out: Where to write, of the partials' dtype or float32; may be one of them. None: a new
            tensor.

    Returns:
        The merged output and its LSE; 0 and -inf where every partial has -inf. The order of the
        partials fixes the bits.

    Raises:
        ValueError: No partial, unlike counts, shapes, dtypes or devices. Nothing was written.
        NotImplementedError: A tensor requires grad while grad mode is on. Nothing was written.
    """
    if not partials:
        raise ValueError("merge_partials: partials is empty, expected at least one.")
    first = partials[0]
    if out is None:
        out = first.new_empty(first.shape)
    lse = first.new_empty(first.shape[:2], dtype=torch.float32)
    run(_ops.merge_partials, list(partials), list(lses), out, lse)
    return out, lse


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
    """Writes new K and V into their places of a paged cache.

    Args:
        k: `[num_tokens, num_kv_heads, head_dim]` float32, float16 or bfloat16.
        v: As `k`.
        k_cache: `[num_pages, page_size, num_kv_heads, head_dim]` of k's dtype, float8_e4m3fn or
            float8_e5m2; any strides.
        v_cache: As `k_cache`.
        slot_mapping: `[num_tokens]` int32 or int64: page * page_size + place; -1 is not written.
            May be shorter than `k`, whose last tokens are padding then.
        k_scale: float32 `[1]` or `[num_kv_heads]`, above 0; required for a float8 cache, which
            stores `saturate(k / k_scale)`.
        v_scale: As `k_scale`, for V.

    Raises:
        ValueError: Shapes, dtypes, devices, or a slot outside of the cache. Nothing was written.
        NotImplementedError: Dtypes that nothing converts, or a tensor that requires grad while grad
            mode is on. Nothing was written.
    """
    run(_ops.store_kv, k, v, k_cache, v_cache, slot_mapping, k_scale=k_scale, v_scale=v_scale)


def rope_norm_store_kv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos_sin: torch.Tensor,
    *,
    style: Literal["neox", "interleaved"] = "neox",
    positions: torch.Tensor | None = None,
    mrope_section: Sequence[int] | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    kv_lens: torch.Tensor | None = None,
    page_table: torch.Tensor | None = None,
    slot_mapping: torch.Tensor | None = None,
    k_cache: torch.Tensor | None = None,
    v_cache: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    out_q: torch.Tensor | None = None,
    out_q_dtype: torch.dtype | None = None,
    out_k: torch.Tensor | None = None,
    out_v: torch.Tensor | None = None,
    q_scale: torch.Tensor | None = None,
    out_q_scale: torch.Tensor | None = None,
    cleared: torch.Tensor | None = None,
    upper_max: float = 448.0,
    norm_policy: Literal["none", "rope_then_norm", "norm_then_rope"] = "none",
    norm_scope: Literal["head", "token"] = "head",
    q_norm_weight: torch.Tensor | None = None,
    k_norm_weight: torch.Tensor | None = None,
    norm_eps: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """QK-norm, RoPE, KV store and FP8 quantisation of q, in one pass over a layer's q, k and v.

    Args:
        q: `[num_tokens, num_q_heads, head_dim]` float32, float16 or bfloat16; may be a view of qkv.
        k: `[num_tokens, num_kv_heads, head_dim]`, q's dtype.
        v: As `k`.
        cos_sin: `[max_position, rotary_dim]` float32, float16 or bfloat16: a first half of cosines,
            a second of sines. Dims past `rotary_dim` pass through.
        style: How dims pair: "neox" (i, i + rotary_dim / 2) or "interleaved" (2i, 2i + 1).
        positions: `[num_tokens]`, or `[3, num_tokens]` with `mrope_section`; int32 or int64. None:
            from `cu_seqlens_q` and `kv_lens`.
        mrope_section: Three counts of pairs that follow each of the three positions.
        cu_seqlens_q: `[num_requests + 1]` int32; needed unless positions and slots are given.
        kv_lens: `[num_requests]` int32, the new tokens included; likewise.
        page_table: `[num_requests, max_pages]` int32; needed for a cache without `slot_mapping`.
        slot_mapping: `[num_tokens]` int32 or int64; -1 is not written.
        k_cache: `[num_pages, page_size, num_kv_heads, head_dim]`, q's dtype or float8; None with
            `v_cache`: nothing is stored.
        v_cache: As `k_cache`.
        k_scale: float32 `[1]` or `[num_kv_heads]`, above 0; required where K is written as float8.
        v_scale: As `k_scale`, for V.
        out_q: `[num_tokens, num_q_heads, head_dim]`, q's dtype or float8_e4m3fn; may be `q` itself.
            None: a new tensor.
        out_q_dtype: Of a new `out_q`; None: q's.
        out_k: Where K as stored goes as well, `[num_tokens, num_kv_heads, head_dim]`.
        out_v: As `out_k`, for V.
        q_scale: float32 `[1]`: a fixed scale for a float8 `out_q`. None: one a token and head.
        out_q_scale: `[num_tokens, num_q_heads]` float32 of any strides, for these; None: a new one.
        cleared: Contiguous int32 of any shape that becomes 0: counters of a kernel that comes next.
        upper_max: A computed scale is the largest magnitude divided by this.
        norm_policy: Order of RMSNorm and RoPE on q and k.
        norm_scope: What one mean square is taken over.
        q_norm_weight: `[head_dim]`, or `[num_q_heads * head_dim]` for the scope "token".
        k_norm_weight: Likewise for k.
        norm_eps: Required with a norm.

    Returns:
        `out_q`, and its scales `[num_tokens, num_q_heads]` float32 where they were computed, else
        None.

    Raises:
        ValueError: Shapes, dtypes, devices or values contradict the above. Nothing was written.
        NotImplementedError: Something that nothing computes, or a tensor that requires grad while
            grad mode is on. Nothing was written.
    """
    if out_q is None:
        out_q = q.new_empty(q.shape, dtype=out_q_dtype or q.dtype)
    elif out_q_dtype is not None and out_q_dtype != out_q.dtype:
        raise ValueError(
            f"rope_norm_store_kv: out_q has dtype {out_q.dtype} and out_q_dtype is {out_q_dtype}. "
            "Give one of the two."
        )
    if out_q_scale is None and out_q.dtype == torch.float8_e4m3fn and q_scale is None:
        out_q_scale = q.new_empty(q.shape[:2], dtype=torch.float32)
    run(
        _ops.rope_norm_store_kv,
        q,
        k,
        v,
        cos_sin,
        out_q,
        out_q_scale,
        out_k,
        out_v,
        k_cache,
        v_cache,
        cleared,
        style=style,
        positions=positions,
        mrope_section=None if mrope_section is None else list(mrope_section),
        cu_seqlens_q=cu_seqlens_q,
        kv_lens=kv_lens,
        page_table=page_table,
        slot_mapping=slot_mapping,
        k_scale=k_scale,
        v_scale=v_scale,
        q_scale=q_scale,
        upper_max=upper_max,
        norm_policy=norm_policy,
        norm_scope=norm_scope,
        q_norm_weight=q_norm_weight,
        k_norm_weight=k_norm_weight,
        norm_eps=norm_eps,
    )
    return out_q, out_q_scale
