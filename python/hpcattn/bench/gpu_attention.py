# SPDX-License-Identifier: Apache-2.0
"""Attention of a GPU over pages, beside torch's flash attention over the same K and V."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

import hpcattn
from hpcattn.bench.attention import OURS, AttentionBench, _Uniform
from hpcattn.bench.cases import AttentionCase

SDPA_FLASH = "sdpa flash"
SDPA_PACKED = "sdpa flash, packed heads"

NOTES = {
    OURS: "paged_attention on shuffled pages; the plan was made beforehand, as a step's layers "
    "share it",
    SDPA_FLASH: "scaled_dot_product_attention by its flash kernel, enable_gqa=True, K and V "
    "contiguous [B, H, S, D] in q's dtype, a call for each length",
    SDPA_PACKED: "decode alone: a caller's trick, the heads of a group passed as query rows",
}


class GpuAttentionBench(AttentionBench):
    """As on the CPU, with what a serving step has ready: the plan, and a place for the output."""

    def __init__(
        self, case: AttentionCase, seed: int = 0, device: torch.device | None = None
    ) -> None:
        """Fills the pages and the contiguous copies, and makes the plan."""
        super().__init__(case, seed, device)
        group = hpcattn.AttentionGroup.of(self.q, self.k_cache, window=case.window)
        self.plan = hpcattn.plan_attention(group, self.cu_seqlens_q, self.kv_lens)
        self.out = torch.empty_like(self.q)

    def _flash(self, part: _Uniform) -> torch.Tensor:
        bias = None
        if part.mask is not None:
            # Flash attention takes no mask; this says that the last row sees all of K.
            bias = causal_lower_right(part.rows, part.kv_len)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(
                part.q,
                part.k,
                part.v,
                attn_mask=bias,
                is_causal=part.causal_flag,
                scale=self.scale,
                enable_gqa=self.case.heads.group > 1,
            )

    def sdpa_flash(self) -> list[torch.Tensor]:
        """Torch's flash attention over contiguous K and V."""
        return [self._flash(part) for part in self._uniform]

    def sdpa_flash_packed(self) -> list[torch.Tensor]:
        """The same with the query heads of a group as rows: K is read once a group."""
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return self.sdpa_packed()

    def contenders(self) -> dict[str, Callable[[], object]]:
        """What to time, by name; what is left out is named in `skipped` with its reason."""
        calls: dict[str, Callable[[], object]] = {OURS: self.ours}
        if any(part.mask is not None for part in self._uniform) and self.case.window is not None:
            self.skipped[SDPA_FLASH] = "torch's flash attention takes no window"
        else:
            calls[SDPA_FLASH] = self.sdpa_flash
        if self.case.kind == "decode" and self.case.heads.group > 1:
            calls[SDPA_PACKED] = self.sdpa_flash_packed
        return calls
