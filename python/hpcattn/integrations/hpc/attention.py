# SPDX-License-Identifier: Apache-2.0
"""The attention calls of the `hpc` interface, over hpcattn's operators.

All are causal, with 1 / sqrt(head_dim) as their scale. Nothing reads a length on the host, so all
of them may be captured in a CUDA graph and replayed with other lengths. Dtypes in the names are the
interface's: what hpcattn takes (float16, on the CPU float32) is served as well.
"""

from __future__ import annotations

import torch

import hpcattn
from hpcattn.integrations.hpc.per_token import check_k_scale, widen
from hpcattn.integrations.hpc.quant import QuantType, quant_type_of
from hpcattn.integrations.hpc.scales import from_prefill_layout
from hpcattn.integrations.hpc.steps import lengths_and_plan, request_starts

_PER_TOKEN = QuantType.QPERTOKEN_PERHEAD_KPERTOKEN_PERHEAD_VPERHEAD
_PER_TENSOR_KV = QuantType.QPERTOKEN_PERHEAD_KPERTENSOR_VPERTENSOR


def _vector(scale: torch.Tensor) -> torch.Tensor:
    """A scale without dims as `[1]`."""
    return scale.reshape(1) if scale.dim() == 0 else scale


def _attend(
    q: torch.Tensor,
    kcache: torch.Tensor,
    vcache: torch.Tensor,
    *,
    page_table: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    kv_lens: torch.Tensor,
    output: torch.Tensor | None,
    scales: dict[str, torch.Tensor] | None = None,
    plan: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention over pages, the result alone."""
    out = hpcattn.paged_attention(
        q,
        kcache,
        vcache,
        page_table=page_table,
        cu_seqlens_q=cu_seqlens_q,
        kv_lens=kv_lens,
        scale=q.shape[-1] ** -0.5,
        out=output,
        plan=plan,
        **(scales or {}),  # type: ignore[arg-type]
    )
    assert isinstance(out, torch.Tensor)
    return out


def _attend_fp8(
    op: str,
    q: torch.Tensor,
    kcache: torch.Tensor,
    vcache: torch.Tensor,
    q_scale: torch.Tensor,
    kscale: torch.Tensor,
    vscale: torch.Tensor,
    kind: QuantType,
    *,
    page_table: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    kv_lens: torch.Tensor,
    output: torch.Tensor | None,
    plan: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same with scales; K's may be one a token and head."""
    kscale, vscale = _vector(kscale), _vector(vscale)
    if kind == _PER_TOKEN and kscale.dim() != 1:
        check_k_scale(op, kscale, kcache)
        if q_scale.dim() == 3:
            q_scale = from_prefill_layout(q_scale, cu_seqlens_q, q.shape[0])
        if output is None:
            output = torch.empty(q.shape, dtype=torch.bfloat16, device=q.device)
        q, kcache, vcache, page_table = widen(
            q, kcache, vcache, page_table, q_scale, kscale, vscale
        )
        out = _attend(
            q,
            kcache,
            vcache,
            page_table=page_table,
            cu_seqlens_q=cu_seqlens_q,
            kv_lens=kv_lens,
            output=output if output.dtype == q.dtype else None,
        )
        return out if out is output else output.copy_(out)
    scales = {"q_scale": q_scale, "k_scale": kscale, "v_scale": vscale}
    return _attend(
        q,
        kcache,
        vcache,
        page_table=page_table,
        cu_seqlens_q=cu_seqlens_q,
        kv_lens=kv_lens,
        output=output,
        scales=scales,
        plan=plan,
    )


def attention_prefill_bf16(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seqlens_q: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    max_seqlens_q: int,
    output: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of whole prompts, without pages.

    Args:
        q: `[num_tokens, num_q_heads, head_dim]`.
        k: `[num_tokens, num_kv_heads, head_dim]`.
        v: As `k`.
        seqlens_q: `[num_requests]` int32, the differences of `cu_seqlens_q`, which are used.
        cu_seqlens_q: `[num_requests + 1]` int32.
        max_seqlens_q: Of the longest; not needed here.
        output: As q, to write to; None: a new tensor.

    Returns:
        `output`.

    Raises:
        ValueError: Shapes or dtypes that contradict the above. Nothing was written.
        NotImplementedError: Something that nothing computes. Nothing was written.
    """
    requests = cu_seqlens_q.shape[0] - 1
    if seqlens_q.shape[0] != requests:
        raise ValueError(
            f"attention_prefill_bf16: seqlens_q has {seqlens_q.shape[0]} entries, expected "
            f"{requests}, one less than cu_seqlens_q."
        )
    out = hpcattn.packed_attention(
        q,
        k,
        v,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_q,
        scale=q.shape[-1] ** -0.5,
        out=output,
    )
    assert isinstance(out, torch.Tensor)
    return out


def attention_with_kvcache_prefill_bf16(
    q: torch.Tensor,
    kcache: torch.Tensor,
    vcache: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    block_ids: torch.Tensor,
    seqlens_kvcache: torch.Tensor,
    max_seqlens_q: int,
    output: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of prompts, or of their chunks, over pages that hold their K and V already.

    Args:
        q: `[num_tokens, num_q_heads, head_dim]`.
        kcache: `[num_pages, page_size, num_kv_heads, head_dim]`, any strides.
        vcache: As `kcache`.
        cu_seqlens_q: `[num_requests + 1]` int32.
        block_ids: `[num_requests, max_pages]` int32.
        seqlens_kvcache: `[num_requests]` int32, the new tokens included.
        max_seqlens_q: Of the longest; not needed here.
        output: As q, to write to; None: a new tensor.

    Returns:
        `output`.

    Raises:
        ValueError: Shapes or dtypes that contradict the above. Nothing was written.
        NotImplementedError: Something that nothing computes. Nothing was written.
    """
    return _attend(
        q,
        kcache,
        vcache,
        page_table=block_ids,
        cu_seqlens_q=cu_seqlens_q,
        kv_lens=seqlens_kvcache,
        output=output,
    )


def attention_with_kvcache_prefill_fp8(
    q: torch.Tensor,
    kcache: torch.Tensor,
    vcache: torch.Tensor,
    qscale: torch.Tensor,
    kscale: torch.Tensor,
    vscale: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    block_ids: torch.Tensor,
    seqlens_kvcache: torch.Tensor,
    max_seqlens_q: int,
    quant_type: QuantType = _PER_TENSOR_KV,
    output: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same over float8 pages, with a float8 q.

    Args:
        q: `[num_tokens, num_q_heads, head_dim]` float8_e4m3fn.
        kcache: `[num_pages, page_size, num_kv_heads, head_dim]` float8, any strides.
        vcache: As `kcache`.
        qscale: `[num_requests, num_q_heads, width]` float32, `width` not below the longest
            request's query tokens; `[1]` for quant type 2.
        kscale: `[1]` or `[num_kv_heads]` float32; for quant type 0 also one a token and head.
        vscale: `[1]` or `[num_kv_heads]` float32.
        cu_seqlens_q: `[num_requests + 1]` int32.
        block_ids: `[num_requests, max_pages]` int32.
        seqlens_kvcache: `[num_requests]` int32, the new tokens included.
        max_seqlens_q: Of the longest; checked against qscale.
        quant_type: 0, 1 or 2.
        output: bfloat16 (or float16, float32) as q to write to; None: a new bfloat16 tensor.

    Returns:
        `output`.

    Raises:
        ValueError: Shapes or dtypes that contradict the above. Nothing was written.
        NotImplementedError: Something that nothing computes. Nothing was written.
    """
    op = "attention_with_kvcache_prefill_fp8"
    kind = quant_type_of(op, "quant_type", quant_type, (0, 1, 2))
    if kind == QuantType.QPERTENSOR_KPERTENSOR_VPERTENSOR:
        q_scale = _vector(qscale)
    else:
        requests = cu_seqlens_q.shape[0] - 1
        if qscale.dim() != 3 or qscale.shape[:2] != (requests, q.shape[1]):
            raise ValueError(
                f"{op}: qscale has shape {list(qscale.shape)}, expected [{requests}, "
                f"{q.shape[1]}, width]."
            )
        if qscale.shape[2] < max_seqlens_q:
            raise ValueError(
                f"{op}: qscale holds {qscale.shape[2]} query tokens a request, expected "
                f"max_seqlens_q ({max_seqlens_q}) or more."
            )
        q_scale = qscale
    return _attend_fp8(
        op,
        q,
        kcache,
        vcache,
        q_scale,
        kscale,
        vscale,
        kind,
        page_table=block_ids,
        cu_seqlens_q=cu_seqlens_q,
        kv_lens=seqlens_kvcache,
        output=output,
    )


def _decode_batch(
    op: str,
    q: torch.Tensor,
    kcache: torch.Tensor,
    lengths: torch.Tensor,
    mtp: int,
    included: bool,
    task_map: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """cu_seqlens_q, kv_lens and the step's plan, of requests with mtp + 1 rows each."""
    rows = mtp + 1
    # Texts are made where they are needed alone: this runs for every layer.
    if mtp < 0:
        raise ValueError(f"{op}: mtp is {mtp}, expected 0 or more.")
    if lengths.dim() != 1 or lengths.dtype != torch.int32:
        raise ValueError(
            f"{op}: num_seq_kvcache is {lengths.dtype} of shape {list(lengths.shape)}, expected "
            "torch.int32 of shape [num_requests]."
        )
    if q.dim() != 3 or kcache.dim() != 4:
        raise ValueError(
            f"{op}: q has rank {q.dim()} and kcache has rank {kcache.dim()}, expected 3 and 4."
        )
    if q.shape[0] < lengths.shape[0] * rows:
        raise ValueError(
            f"{op}: q has {q.shape[0]} rows, expected {lengths.shape[0]} requests x {rows} "
            "(mtp + 1)."
        )
    starts = request_starts(lengths, rows)
    kv_lens, plan = lengths_and_plan(task_map, q, kcache, starts, lengths, rows, included)
    return starts, kv_lens, plan


def attention_decode_bf16(
    q: torch.Tensor,
    kcache: torch.Tensor,
    vcache: torch.Tensor,
    block_ids: torch.Tensor,
    num_seq_kvcache: torch.Tensor,
    mtp: int = 0,
    new_kv_included: bool = False,
    splitk: bool = True,
    task_map: torch.Tensor | None = None,
    split_flag: torch.Tensor | None = None,
    output: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of a step that has the same few new tokens for each request.

    Args:
        q: `[num_requests * (mtp + 1), num_q_heads, head_dim]`; rows past that are padding, whose
            results become 0.
        kcache: `[num_pages, page_size, num_kv_heads, head_dim]`, any strides.
        vcache: As `kcache`.
        block_ids: `[num_requests, max_pages]` int32.
        num_seq_kvcache: `[num_requests]` int32.
        mtp: Speculative rows of a request beside its one; any number.
        new_kv_included: Whether `num_seq_kvcache` counts the `mtp + 1` new tokens. They are in the
            pages either way.
        splitk: A hint that is not needed: the plan splits where that is faster.
        task_map: From `get_attention_decode_task_workspace`: layers of a step share its plan.
        split_flag: Workspace of other kernels; not needed here.
        output: As q, to write to; None: a new tensor.

    Returns:
        `output`.

    Raises:
        ValueError: Shapes or dtypes that contradict the above. Nothing was written.
        NotImplementedError: Something that nothing computes. Nothing was written.
    """
    op = "attention_decode_bf16"
    starts, kv_lens, plan = _decode_batch(
        op, q, kcache, num_seq_kvcache, mtp, new_kv_included, task_map
    )
    return _attend(
        q,
        kcache,
        vcache,
        page_table=block_ids,
        cu_seqlens_q=starts,
        kv_lens=kv_lens,
        output=output,
        plan=plan,
    )


def attention_decode_fp8(
    q: torch.Tensor,
    kcache: torch.Tensor,
    vcache: torch.Tensor,
    block_ids: torch.Tensor,
    num_seq_kvcache: torch.Tensor,
    qscale: torch.Tensor,
    kscale: torch.Tensor,
    vscale: torch.Tensor,
    mtp: int = 0,
    new_kv_included: bool = False,
    quant_type: QuantType = _PER_TENSOR_KV,
    splitk: bool = True,
    task_map: torch.Tensor | None = None,
    split_flag: torch.Tensor | None = None,
    output: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same over float8 pages, with a float8 q.

    Args:
        q: `[num_requests * (mtp + 1), num_q_heads, head_dim]` float8_e4m3fn.
        kcache: `[num_pages, page_size, num_kv_heads, head_dim]` float8, any strides.
        vcache: As `kcache`.
        block_ids: `[num_requests, max_pages]` int32.
        num_seq_kvcache: `[num_requests]` int32.
        qscale: `[num_requests * (mtp + 1), num_q_heads]` float32, or more rows; `[1]` for quant
            type 2.
        kscale: `[1]` or `[num_kv_heads]` float32; for quant type 0 also one a token and head.
        vscale: `[1]` or `[num_kv_heads]` float32.
        mtp: As for `attention_decode_bf16`.
        new_kv_included: As for `attention_decode_bf16`.
        quant_type: 0, 1 or 2.
        splitk: As for `attention_decode_bf16`.
        task_map: As for `attention_decode_bf16`.
        split_flag: As for `attention_decode_bf16`.
        output: bfloat16 (or float16, float32) as q to write to; None: a new bfloat16 tensor.

    Returns:
        `output`.

    Raises:
        ValueError: Shapes or dtypes that contradict the above. Nothing was written.
        NotImplementedError: Something that nothing computes. Nothing was written.
    """
    op = "attention_decode_fp8"
    kind = quant_type_of(op, "quant_type", quant_type, (0, 1, 2))
    if kind == QuantType.QPERTENSOR_KPERTENSOR_VPERTENSOR:
        q_scale = _vector(qscale)
    else:
        rows, heads = q.shape[0], q.shape[1]
        if qscale.dim() != 2 or qscale.shape[0] < rows or qscale.shape[1] != heads:
            raise ValueError(
                f"{op}: qscale has shape {list(qscale.shape)}, expected [{rows} or more, {heads}]."
            )
        q_scale = qscale if qscale.shape[0] == rows else qscale[:rows]
    if kscale.dim() > 1:
        task_map = None  # attention will run over other pages than these
    starts, kv_lens, plan = _decode_batch(
        op, q, kcache, num_seq_kvcache, mtp, new_kv_included, task_map
    )
    return _attend_fp8(
        op,
        q,
        kcache,
        vcache,
        q_scale,
        kscale,
        vscale,
        kind,
        page_table=block_ids,
        cu_seqlens_q=starts,
        kv_lens=kv_lens,
        output=output,
        plan=plan,
    )
