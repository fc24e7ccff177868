# SPDX-License-Identifier: Apache-2.0
"""`attn_implementation="hpcattn"`: attention over Transformers' dense tensors, read in place.

K and V come as [batch, kv_heads, kv_len, head_dim], in whatever memory order the cache has. The
tokens of one batch row lie at a fixed distance, and so do the rows; so one strided view
[tokens, kv_heads, head_dim] holds them all, with gaps between the rows. packed_attention takes
requests one after the other: gaps and padding are requests without queries, and nothing is copied.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import hpcattn
from hpcattn import AttentionGroup
from hpcattn.integrations.transformers.checks import layer_name, refuse_unsupported, softmax_scale
from hpcattn.integrations.transformers.mask import MaskMeaning, meaning_of
from hpcattn.integrations.transformers.plans import PlanCache, outside_graphs

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class _Lengths:
    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    kv_lens: Tensor


@outside_graphs
def dense_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Transformers' attention interface.

    Args:
        module: The attention layer; its is_causal counts where there is neither a mask nor the
            is_causal argument.
        query: [batch, q_heads, q_len, head_dim].
        key: [batch, kv_heads, kv_len, head_dim], any memory order.
        value: As key.
        attention_mask: Made by make_mask; or [batch, kv_len], not 0 for tokens that exist; or None.
        dropout: Must be 0.
        scaling: Multiplies q . k; 1/sqrt(head_dim) where None.
        sliding_window: Counts where the mask was not made by make_mask; the query's own token is
            included.
        softcap: Cap of the scores; None for none.
        is_causal: Likewise counts where the mask does not say.
        s_aux: [q_heads] attention sinks.
        **kwargs: cu_seq_lens_q and cu_seq_lens_k describe sequences packed into one row.

    Returns:
        [batch, q_len, q_heads, head_dim] and no weights. Rows of padding are 0.

    Raises:
        NotImplementedError: See checks.refuse_unsupported; also a 4D mask, and padding between
            tokens of one row.
        ValueError: Shapes that contradict each other.
    """
    refuse_unsupported(module, query, key, value, dropout=dropout, s_aux=s_aux, kwargs=kwargs)
    meaning = _meaning(module, key, attention_mask, sliding_window, is_causal)
    batch, num_heads, q_len, head_dim = query.shape
    q = query.transpose(1, 2).reshape(batch * q_len, num_heads, head_dim)
    k, v, row_tokens = _token_views(key, value)

    cu_seq_lens_q, cu_seq_lens_k = kwargs.get("cu_seq_lens_q"), kwargs.get("cu_seq_lens_k")
    if cu_seq_lens_q is not None and cu_seq_lens_k is not None:
        if batch != 1:
            raise ValueError(
                f"hpcattn: {layer_name(module)} got cu_seq_lens_q with a batch of {batch}, expected"
                " 1: packed sequences lie in one row."
            )
        # The tensors themselves are the key: held by it, their identity can not be reused.
        shape: Hashable = (cu_seq_lens_q, cu_seq_lens_k)
        lengths = meaning.plans.get(
            ("lengths", shape), lambda: _lengths(cu_seq_lens_q, cu_seq_lens_k, query.device)
        )
    else:
        kv_len = key.shape[2]
        shape = (batch, q_len, kv_len, row_tokens)
        lengths = meaning.plans.get(
            ("lengths", shape),
            lambda: _requests(module, meaning, attention_mask, q_len, kv_len, row_tokens, key),
        )

    group = AttentionGroup.of(q, k, causal=meaning.causal, window=meaning.window)
    out = hpcattn.packed_attention(
        q,
        k,
        v,
        cu_seqlens_q=lengths.cu_seqlens_q,
        cu_seqlens_k=lengths.cu_seqlens_k,
        scale=softmax_scale(query, scaling),
        causal=meaning.causal,
        window=meaning.window,
        softcap=softcap or 0.0,
        sinks=s_aux,
        plan=meaning.plans.plan(shape, group, lengths.cu_seqlens_q, lengths.kv_lens, q.size(0)),
    )
    assert isinstance(out, Tensor)
    return out.view(batch, q_len, num_heads, head_dim), None


def _meaning(
    module: nn.Module,
    key: Tensor,
    mask: Tensor | None,
    sliding_window: int | None,
    is_causal: bool | None,
) -> MaskMeaning:
    """What make_mask noted; without it, what the arguments say."""
    if mask is not None:
        if mask.dim() != 2 or mask.shape != (key.shape[0], key.shape[2]):
            raise NotImplementedError(
                f"hpcattn: {layer_name(module)} got an attention_mask of shape {list(mask.shape)},"
                f" expected [{key.shape[0]}, {key.shape[2]}] (batch, KV tokens): hpcattn takes"
                " lengths and windows, no mask of (query, KV) pairs."
                ' Use attn_implementation="sdpa" or "eager" for custom 4D masks.'
            )
        meaning = meaning_of(mask)
        if meaning is not None:
            return meaning
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    tied = causal or sliding_window is not None
    return MaskMeaning(
        causal=causal,
        window=sliding_window,
        query_end=key.shape[2] if tied else None,
        sequence_ids=None,
        all_exist=mask is None,
        plans=PlanCache(),
    )


def _token_views(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, int]:
    """K and V as [tokens, kv_heads, head_dim], and the tokens from one batch row to the next.

    Views wherever the memory order allows it: always for contiguous tensors, for transposed ones
    and for slices of a longer cache.
    """
    k_row, v_row = _row_tokens(key), _row_tokens(value)
    if k_row is None or k_row != v_row:
        key = key.transpose(1, 2).contiguous().transpose(1, 2)
        value = value.transpose(1, 2).contiguous().transpose(1, 2)
        k_row = key.shape[2]
    return _token_view(key, k_row), _token_view(value, k_row), k_row


def _row_tokens(x: Tensor) -> int | None:
    """Tokens from one row of [batch, heads, tokens, head_dim] to the next; None for a fraction."""
    batch, _, tokens, _ = x.shape
    if x.stride(3) != 1:
        return None
    if batch == 1:
        return tokens
    if tokens == 1:
        return 1
    row, rest = divmod(x.stride(0), max(x.stride(2), 1))
    return row if rest == 0 and row >= tokens else None


def _token_view(x: Tensor, row_tokens: int) -> Tensor:
    batch, heads, tokens, head_dim = x.shape
    # With one token a row that dimension's stride says nothing: the rows are then the tokens.
    token_stride = x.stride(0) if tokens == 1 and batch > 1 else x.stride(2)
    return x.as_strided(
        ((batch - 1) * row_tokens + tokens if batch else 0, heads, head_dim),
        (token_stride, x.stride(1), 1),
    )


def _requests(
    module: nn.Module,
    meaning: MaskMeaning,
    mask: Tensor | None,
    q_len: int,
    kv_len: int,
    row_tokens: int,
    key: Tensor,
) -> _Lengths:
    """The requests of a dense batch: gaps, tokens that exist, rows of padding.

    A query token at KV index i that is padding itself becomes part of a request without KV, or
    stands before the first KV token of its own: in either case it sees nothing, and gives 0.
    """
    batch, device = key.shape[0], key.device
    if meaning.sequence_ids is not None:
        return _packed_sequences(meaning.sequence_ids, row_tokens, device)
    if (batch - 1) * row_tokens + kv_len > _INT32_MAX:
        raise ValueError(
            f"hpcattn: {layer_name(module)} has {batch} rows of {row_tokens} tokens, expected at"
            f" most {_INT32_MAX} tokens in all. Use a smaller batch."
        )
    starts, ends = _existing(module, meaning, mask, batch, kv_len)
    q_lens: list[int] = []
    kv_lens: list[int] = []
    cursor = 0
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        first = row * row_tokens + start
        q_lens.append(0)
        kv_lens.append(first - cursor)
        cursor = row * row_tokens + end
        padding_after = 0
        if meaning.query_end is not None:
            padding_after = min(max(meaning.query_end - end, 0), q_len)
        q_lens += [q_len - padding_after, padding_after]
        kv_lens += [end - start, 0]
    return _from_lists(q_lens, kv_lens, device)


def _existing(
    module: nn.Module, meaning: MaskMeaning, mask: Tensor | None, batch: int, kv_len: int
) -> tuple[list[int], list[int]]:
    """First and past-last KV token of each row that exists; refuses holes."""
    end = kv_len if meaning.query_end is None else meaning.query_end
    if mask is None or meaning.all_exist:
        return [0] * batch, [end] * batch
    exist = mask.bool()
    counts = exist.sum(dim=1)
    starts = torch.where(counts > 0, exist.int().argmax(dim=1), 0)
    index = torch.arange(kv_len, device=exist.device)
    inside = (index >= starts[:, None]) & (index < (starts + counts)[:, None])
    # One transfer from a GPU: it waits for the stream.
    first, count, whole = torch.stack([starts, counts, (inside == exist).all(dim=1)]).tolist()
    if not all(whole):
        row = whole.index(0)
        raise NotImplementedError(
            f"hpcattn: {layer_name(module)} got an attention_mask with padding between the tokens"
            f" of batch row {row}, expected it before or after them. Pad on the left, as a"
            " tokenizer does with padding_side='left'."
        )
    return first, [start + length for start, length in zip(first, count, strict=True)]


def _packed_sequences(sequence_ids: Tensor, row_tokens: int, device: torch.device) -> _Lengths:
    """Sequences packed into each row, without a cache: [batch, q_len] numbers to requests."""
    batch, q_len = sequence_ids.shape
    q_lens: list[int] = []
    kv_lens: list[int] = []
    for row in range(batch):
        counts = torch.unique_consecutive(sequence_ids[row], return_counts=True)[1].tolist()
        gap = row_tokens - q_len if row else 0
        q_lens += [0, *counts]
        kv_lens += [gap, *counts]
    return _from_lists(q_lens, kv_lens, device)


def _from_lists(q_lens: Sequence[int], kv_lens: Sequence[int], device: torch.device) -> _Lengths:
    lens = torch.tensor([[0, *q_lens], [0, *kv_lens]], dtype=torch.int32)
    cu_seqlens = lens.cumsum(dim=1, dtype=torch.int32).to(device)
    return _Lengths(cu_seqlens[0], cu_seqlens[1], lens[1, 1:].contiguous().to(device))


def _lengths(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, device: torch.device) -> _Lengths:
    cu_q = cu_seqlens_q.to(device=device, dtype=torch.int32)
    cu_k = cu_seqlens_k.to(device=device, dtype=torch.int32)
    return _Lengths(cu_q, cu_k, cu_k.diff())
