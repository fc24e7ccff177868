# SPDX-License-Identifier: Apache-2.0
"""What a KV cache in another dtype costs a model: its perplexity on a text.

The text goes through the model in chunks, as a prompt is served: K and V of a chunk are written to
pages of the dtype in question, and attention reads every page back. So each token is predicted
from K and V as they are stored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import hpcattn
from hpcattn.models import Model

_NAME = "paged|hpcattn_pool"
_LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
# Of scales: the largest K or V of the first chunk may be passed by so much before it saturates.
_HEADROOM = 2.0

TEXT = """\
Twice a day the sea climbs the harbour wall and twice a day it goes down again, and for most of
history nobody could say why. Fishermen knew the hours by heart. They knew that the water came
later every day, by somewhat less than an hour, and that the highest tides followed the full moon
and the new one. What they knew was useful and it was right, but it was a list of facts and not a
reason.

The reason came from the study of planets. If the moon pulls on the earth, then it pulls on the
near side a little more than on the middle, and on the middle a little more than on the far side.
Water is free to move, so it heaps up on both sides, towards the moon and away from it, and the
earth turns beneath the two heaps. That is why there are two high tides in a day and not one. The
sun does the same with less than half the strength, because it is so far away. When sun and moon
stand in a line their pulls add up and the tides are great; when they stand at a right angle the
tides are small.

This answer is simple, and it fails in almost every harbour. The real sea is not a thin coat of
water on a smooth ball. It lies in basins with shores, and each basin has a rhythm of its own,
like the water in a bath that has been pushed once. Where the rhythm of the basin agrees with the
pull of the moon, the tide grows to ten metres and more. Where it does not, the water hardly moves
at all. A wave that has to squeeze into a narrow bay rises, and one that spreads out over a wide
shelf is slowed by the ground and arrives late. Two ports that are a short walk apart may have
their high water hours from each other.

So people went back to lists, but better ones. They measured the height of the water at one place
for a year, and then they took the curve apart into a sum of simple waves, each with the period of
some motion of the moon or the sun, and each with its own height and delay. The periods come from
astronomy and are the same everywhere. The heights and delays belong to the harbour and have to be
measured. Once they are known, the sum can be run forward for as long as one likes. The first
machines that did this were made of brass wheels and a cord, and they drew next year's tides on a
roll of paper in an afternoon.
"""


@dataclass
class KvPool:
    """Pages of one request, of all layers, in one dtype."""

    dtype: torch.dtype
    page_size: int
    num_pages: int
    caches: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    scales: dict[int, tuple[Tensor, Tensor] | None] = field(default_factory=dict)

    def layer(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's caches; made at its first chunk, whose largest K and V set the scales."""
        if layer not in self.caches:
            shape = (self.num_pages, self.page_size, *k.shape[1:])
            k_cache, v_cache = (k.new_empty(shape, dtype=self.dtype) for _ in range(2))
            self.caches[layer] = (k_cache, v_cache)
            self.scales[layer] = None
            if self.dtype in _LARGEST:
                self.scales[layer] = (self._scale(k), self._scale(v))
        return self.caches[layer]

    def _scale(self, x: Tensor) -> Tensor:
        largest = x.float().abs().amax(dim=(0, 2)).clamp(min=1e-6)
        return largest * (_HEADROOM / _LARGEST[self.dtype])


def _pool_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    kv_pool: KvPool | None = None,
    kv_lengths: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Transformers' attention interface, over the pool that the forward pass was given."""
    assert kv_pool is not None
    assert kv_lengths is not None
    slots, page_table, cu_seqlens_q, kv_lens = kv_lengths
    layer: Any = module.layer_idx
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    k_cache, v_cache = kv_pool.layer(layer, k, v)
    scales = kv_pool.scales[layer]
    given: dict[str, Any] = {} if scales is None else {"k_scale": scales[0], "v_scale": scales[1]}
    hpcattn.store_kv(k, v, k_cache, v_cache, slots, **given)
    out = hpcattn.paged_attention(
        q,
        k_cache,
        v_cache,
        page_table=page_table,
        cu_seqlens_q=cu_seqlens_q,
        kv_lens=kv_lens,
        scale=q.size(-1) ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap or 0.0,
        sinks=s_aux,
        **given,
    )
    assert isinstance(out, Tensor)
    return out.unsqueeze(0), None


@torch.no_grad()
def perplexity(
    model: Model,
    text: str = TEXT,
    *,
    kv_cache_dtype: torch.dtype | None = None,
    chunk: int = 64,
    page_size: int = 16,
) -> float:
    """The perplexity of a model on a text, with K and V stored in a dtype.

    Args:
        model: From `hpcattn.models.load`.
        text: What is predicted, token by token.
        kv_cache_dtype: Of the pages; None: the model's own.
        chunk: Tokens of a forward pass.
        page_size: Tokens of a page.

    Raises:
        ValueError: The text has fewer than two tokens.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(_NAME, _pool_attention)
    device = model.model.device
    tokens = model.tokenizer(text, return_tensors="pt").input_ids[0].to(device)
    if tokens.numel() < 2:
        raise ValueError(f"perplexity: the text has {tokens.numel()} tokens, expected 2 or more.")
    num_pages = -(-tokens.numel() // page_size)
    pool = KvPool(kv_cache_dtype or model.model.dtype, page_size, num_pages)
    table = torch.arange(num_pages, dtype=torch.int32, device=device)[None]
    before = model.model.config._attn_implementation
    model.model.set_attn_implementation(_NAME)
    total = 0.0
    try:
        for start in range(0, tokens.numel(), chunk):
            ids = tokens[start : start + chunk]
            places = torch.arange(start, start + ids.numel(), device=device)
            ends = torch.tensor([0, ids.numel()], dtype=torch.int32, device=device)
            kv_len = torch.tensor([start + ids.numel()], dtype=torch.int32, device=device)
            logits = model.model(
                input_ids=ids[None],
                position_ids=places[None],
                use_cache=False,
                kv_pool=pool,
                kv_lengths=(places, table, ends, kv_len),
            ).logits[0]
            following = tokens[start + 1 : start + 1 + ids.numel()]
            losses = nn.functional.cross_entropy(
                logits[: following.numel()].float(), following, reduction="sum"
            )
            total += float(losses)
    finally:
        model.model.set_attn_implementation(before)
    return math.exp(total / (tokens.numel() - 1))
