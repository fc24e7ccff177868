# SPDX-License-Identifier: Apache-2.0
"""`attn_implementation="paged|hpcattn"`: attention over the paged cache of continuous batching.

Transformers keeps one pool of blocks (our pages) for a group of like layers and hands each step's
tokens packed, with the index of every cached token to read (read_index) and of every new one to
write (write_index). New K and V are written with store_kv, pages are read where they lie.

A sliding-window group keeps the last `window` tokens of a request in a ring over its pages. A step
of one token writes into the ring and reads all of it: every token there is in the window, and the
order of KV tokens does not matter to attention. A prompt's first chunk needs no cache at all. Only
a later chunk of several tokens overwrites what its own first tokens must still see; its at most
`window - 1` cached tokens are copied out before that, as the ring leaves no choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import transformers
from torch import Tensor, nn

import hpcattn
from hpcattn import AttentionGroup
from hpcattn.integrations.transformers.checks import layer_name, refuse_unsupported, softmax_scale
from hpcattn.integrations.transformers.plans import outside_graphs
from hpcattn.integrations.transformers.steps import GroupStep, RingStep, step_of

if TYPE_CHECKING:
    from transformers.generation.continuous_batching import PagedAttentionCache

# How Transformers lays a ring out is not part of its interface: 5.15 does it otherwise, 5.18 reads
# the cache itself, and 5.19 admits no attention function but its own.
_FIRST_VERSION, _END_VERSION = (5, 16), (5, 18)


def check_transformers_version() -> None:
    """Refuses versions whose continuous batching this module was not written for.

    Raises:
        NotImplementedError: Another version of Transformers is installed.
    """
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if not _FIRST_VERSION <= version < _END_VERSION:
        raise NotImplementedError(
            "hpcattn: continuous batching needs transformers 5.16 or 5.17, got"
            f" {transformers.__version__}. pip install 'transformers>=5.16,<5.18', or use"
            " generate() with attn_implementation='hpcattn'."
        )


@outside_graphs
def paged_cache_attention(
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
    cache: PagedAttentionCache | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Transformers' attention interface, as continuous batching calls it.

    Args:
        module: The attention layer; its layer_idx finds the cache's tensors.
        query: [1, q_heads, num_tokens, head_dim], the step's tokens one request after the other.
        key: [1, kv_heads, num_tokens, head_dim], not in the cache yet.
        value: As key.
        attention_mask: Must be None: none is made for this implementation.
        dropout: Must be 0.
        scaling: Multiplies q . k; 1/sqrt(head_dim) where None.
        sliding_window: As the model says; must agree with the cache's.
        softcap: Cap of the scores; None for none.
        is_causal: Must not be False.
        s_aux: [q_heads] attention sinks.
        cache: The paged cache.
        **kwargs: cu_seq_lens_q, cu_seq_lens_k, max_seqlen_k, read_index and write_index. A layer
            that keeps all tokens reads nothing back from a GPU; a ring's step reads its lengths.

    Returns:
        [1, num_tokens, q_heads, head_dim] and no weights.

    Raises:
        NotImplementedError: See checks.refuse_unsupported; also a mask, attention that is not
            causal, and other versions of Transformers than 5.16 and 5.17.
        ValueError: No cache, a block size that is no multiple of 8, or contradicting windows.
    """
    refuse_unsupported(module, query, key, value, dropout=dropout, s_aux=s_aux, kwargs=kwargs)
    if cache is None:
        raise ValueError(
            f"hpcattn: {layer_name(module)} was called with attn_implementation='paged|hpcattn' and"
            " no paged cache. It serves generate_batch(); use attn_implementation='hpcattn' for"
            " generate() and plain forward passes."
        )
    check_transformers_version()
    _refuse_outside_contract(module, cache, attention_mask, sliding_window, is_causal, kwargs)
    layer_idx = _layer_idx(module)
    step = step_of(cache, layer_idx, kwargs)
    _, index_in_group = cache.layer_index_to_group_indices[layer_idx]
    layer = _Layer(
        q=_packed(query),
        k=_packed(key),
        v=_packed(value),
        k_cache=_pages(cache.key_cache[index_in_group], cache.block_size),
        v_cache=_pages(cache.value_cache[index_in_group], cache.block_size),
        options={
            "scale": softmax_scale(query, scaling),
            "softcap": softcap or 0.0,
            "sinks": s_aux,
        },
    )
    out = layer.attend_ring(step) if isinstance(step, RingStep) else layer.attend(step)
    return out.unsqueeze(0), None


def _refuse_outside_contract(
    module: nn.Module,
    cache: PagedAttentionCache,
    attention_mask: Tensor | None,
    sliding_window: int | None,
    is_causal: bool | None,
    kwargs: dict[str, Any],
) -> None:
    """What continuous batching never asks for, or hpcattn's pages can not serve."""
    who = layer_name(module)
    if attention_mask is not None:
        raise NotImplementedError(
            f"hpcattn: {who} got an attention_mask with a paged cache, expected None: requests are"
            " told apart by cu_seq_lens_q and cu_seq_lens_k."
        )
    if is_causal is False:
        raise NotImplementedError(
            f"hpcattn: {who} asks for attention over a paged cache that is not causal."
        )
    if kwargs.get("block_table") is not None:
        raise NotImplementedError(
            f"hpcattn: {who} got a block_table, expected read_index and write_index. Pass"
            " ContinuousBatchingConfig(max_blocks_per_request=0)."
        )
    if cache.block_size % 8 != 0:
        raise ValueError(
            f"hpcattn: the paged cache has blocks of {cache.block_size} tokens, expected a multiple"
            " of 8. Pass ContinuousBatchingConfig(block_size=16)."
        )
    # The cache writes 1 for a layer without a window.
    kept = cache.sliding_windows[_layer_idx(module)]
    if sliding_window is not None and sliding_window != kept:
        raise ValueError(
            f"hpcattn: {who} has a window of {sliding_window} tokens, but its cache keeps"
            f" {'all of them' if kept == 1 else kept}. Make the config's layer_types and"
            " sliding_window agree."
        )


class _Layer:
    """One layer's tensors of a step; q, k, v [tokens, heads, head_dim], caches as pages."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        options: dict[str, Any],
    ) -> None:
        self.q, self.k, self.v = q, k, v
        self.k_cache, self.v_cache = k_cache, v_cache
        self.options = options

    def attend(self, step: GroupStep) -> Tensor:
        """A layer that keeps all tokens: write the new ones, then read every page in place."""
        self._store(step)
        return self._paged(self.q, step)

    def attend_ring(self, step: RingStep) -> Tensor:
        """A sliding-window layer, whose cache is a ring."""
        if step.decodes_only:
            self._store(step)
            return self._paged(self.q, step)
        # Before the new tokens are written: they may replace cached ones that are still needed.
        out = self._chunks(step)
        self._store(step)
        if step.decode_rows is not None:
            # Single tokens of a mixed step; what _chunks gave their rows is replaced.
            out[step.decode_rows] = self._paged(self.q[step.decode_rows], step)
        return out

    def _store(self, step: GroupStep) -> None:
        hpcattn.store_kv(self.k, self.v, self.k_cache, self.v_cache, step.slots)

    def _paged(self, q: Tensor, step: GroupStep) -> Tensor:
        # Every token that a ring still holds is in the window of its one query: none is passed.
        group = AttentionGroup.of(q, self.k_cache)
        out = hpcattn.paged_attention(
            q,
            self.k_cache,
            self.v_cache,
            page_table=step.page_table,
            cu_seqlens_q=step.cu_seqlens_q,
            kv_lens=step.kv_lens,
            plan=step.plans.plan("pages", group, step.cu_seqlens_q, step.kv_lens, q.size(0)),
            **self.options,
        )
        assert isinstance(out, Tensor)
        return out

    def _chunks(self, step: RingStep) -> Tensor:
        """Requests of several tokens: over the new K and V, after the cached ones if any."""
        k, v = self.k, self.v
        if step.cached_slots is not None:
            k = self._with_cached(k, self.k_cache, step)
            v = self._with_cached(v, self.v_cache, step)
        group = AttentionGroup.of(self.q, k, window=step.window)
        out = hpcattn.packed_attention(
            self.q,
            k,
            v,
            cu_seqlens_q=step.chunk_cu_seqlens_q,
            cu_seqlens_k=step.chunk_cu_seqlens_k,
            window=step.window,
            plan=step.plans.plan(
                "chunks",
                group,
                step.chunk_cu_seqlens_q,
                step.chunk_cu_seqlens_k.diff(),
                self.q.size(0),
            ),
            **self.options,
        )
        assert isinstance(out, Tensor)
        return out

    @staticmethod
    def _with_cached(new: Tensor, pages: Tensor, step: RingStep) -> Tensor:
        """Cached tokens of each chunked request, then its new ones, packed."""
        assert step.cached_slots is not None
        assert step.cached_places is not None
        assert step.new_places is not None
        num_new = step.new_places.shape[0]  # rows of padding may follow
        both = new.new_empty(num_new + step.cached_slots.shape[0], *new.shape[1:])
        both[step.new_places] = new[:num_new]
        both[step.cached_places] = pages.flatten(0, 1)[step.cached_slots]
        return both


def _layer_idx(module: nn.Module) -> int:
    index = module.layer_idx
    assert isinstance(index, int)
    return index


def _packed(x: Tensor) -> Tensor:
    """[1, heads, tokens, head_dim] as [tokens, heads, head_dim], a view."""
    packed = x[0].transpose(0, 1)
    return packed if packed.stride(-1) == 1 else packed.contiguous()


def _pages(cache: Tensor, block_size: int) -> Tensor:
    """[tokens, kv_heads, head_dim] as [pages, page_size, kv_heads, head_dim], a view."""
    return cache.view(-1, block_size, *cache.shape[1:])
