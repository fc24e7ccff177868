# SPDX-License-Identifier: Apache-2.0
"""One plan a step for all layers that are alike."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor

import hpcattn
from hpcattn import AttentionGroup

_T = TypeVar("_T")
_Function = TypeVar("_Function", bound=Callable[..., Any])


def outside_graphs(function: _Function) -> _Function:
    """Keeps a function out of torch.compile's graphs, which break at it."""
    disable: Any = torch.compiler.disable
    kept: _Function = disable(
        function, reason="hpcattn reads lengths on the host, once for all layers of a step"
    )
    return kept


class PlanCache:
    """What the layers of one step share: lengths by shape, plans by attention group.

    It lives as long as the step's own object (a mask, a batch) and so needs no invalidation.
    """

    def __init__(self) -> None:
        self._made: dict[Hashable, object] = {}

    def get(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """The value made for `key` in this step, by `make` on first use."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]  # type: ignore[return-value]  # a key names one kind of value

    def plan(
        self,
        key: Hashable,
        group: AttentionGroup,
        cu_seqlens_q: Tensor,
        kv_lens: Tensor,
        num_tokens: int,
    ) -> Tensor:
        """The plan of these lengths (named by `key`) for one attention group.

        `num_tokens` is the rows of q: with it, nothing is read back from a GPU.
        """

        def make() -> Tensor:
            return hpcattn.plan_attention(group, cu_seqlens_q, kv_lens, num_tokens=num_tokens)

        return self.get((key, group), make)
