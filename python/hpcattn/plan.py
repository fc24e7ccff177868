# SPDX-License-Identifier: Apache-2.0
"""The plan of a step: made once for each group of like layers, used by all of them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import torch

from hpcattn import _library
from hpcattn._errors import run

_ops = _library.load()


@dataclasses.dataclass(frozen=True)
class AttentionGroup:
    """What all layers that share a plan have in common.

    Attributes:
        num_q_heads: Heads of q.
        num_kv_heads: Heads of K and V; divides `num_q_heads`.
        head_dim: Size of a head.
        page_size: Tokens of a page; 0 for packed K and V.
        q_dtype: Dtype of q.
        kv_dtype: Dtype of K and V as stored.
        causal: As given to the attention call.
        window: As given to the attention call.
    """

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    q_dtype: torch.dtype
    kv_dtype: torch.dtype
    causal: bool = True
    window: int | None = None

    @classmethod
    def of(
        cls, q: torch.Tensor, k: torch.Tensor, *, causal: bool = True, window: int | None = None
    ) -> AttentionGroup:
        """The group of a call.

        Args:
            q: `[num_tokens, num_q_heads, head_dim]`.
            k: A cache `[num_pages, page_size, num_kv_heads, head_dim]`, or packed
                `[num_kv_tokens, num_kv_heads, head_dim]`.
            causal: As the call will have it.
            window: As the call will have it.

        Raises:
            ValueError: A rank is neither.
        """
        if q.dim() != 3 or k.dim() not in (3, 4):
            raise ValueError(
                f"AttentionGroup.of: q has rank {q.dim()} and k rank {k.dim()}, expected 3 for q, "
                "and 4 (a cache) or 3 (packed) for k."
            )
        return cls(
            num_q_heads=q.size(1),
            num_kv_heads=k.size(-2),
            head_dim=q.size(2),
            page_size=k.size(1) if k.dim() == 4 else 0,
            q_dtype=q.dtype,
            kv_dtype=k.dtype,
            causal=causal,
            window=window,
        )

    def _as_arguments(self) -> dict[str, Any]:
        # Spelled out: a loop over the fields costs more than the operator's checks.
        return {
            "num_q_heads": self.num_q_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "page_size": self.page_size,
            "q_dtype": self.q_dtype,
            "kv_dtype": self.kv_dtype,
            "causal": self.causal,
            "window": self.window,
        }


def plan_words(
    group: AttentionGroup,
    *,
    max_requests: int,
    max_tokens: int,
    max_kv_len: int = 0,
    fixed_split: int = 0,
    device: torch.device | str | None = None,
) -> int:
    """Size of a plan tensor that holds any batch up to these limits.

    Args:
        group: The layers that it will serve.
        max_requests: Requests of a step.
        max_tokens: Query tokens of a step.
        max_kv_len: KV tokens of one request; counts with `fixed_split` alone.
        fixed_split: As `plan_attention` will get it.
        device: Where the plan is made and used; None: the CPU. A plan of a GPU has another size.

    Returns:
        Number of int32 words; on the CPU for the present number of torch's threads.

    Raises:
        ValueError: A limit is negative, or the group contradicts itself.
        NotImplementedError: Nothing computes this group.
        RuntimeError: There is no such GPU.
    """
    words: int = run(
        _ops.plan_words,
        max_requests,
        max_tokens,
        max_kv_len,
        fixed_split=fixed_split,
        device=None if device is None else torch.device(device),
        **group._as_arguments(),
    )
    return words


def _limits(
    cu_seqlens_q: torch.Tensor,
    kv_lens: torch.Tensor,
    fixed_split: int,
    num_tokens: int | None,
    max_kv_len: int | None,
) -> tuple[int, int]:
    """Query tokens and longest KV of a batch; what is not given is read from the tensors."""
    if num_tokens is None:
        num_tokens = int(cu_seqlens_q[-1]) if cu_seqlens_q.numel() else 0
    if fixed_split == 0:
        max_kv_len = 0
    elif max_kv_len is None:
        max_kv_len = max(1, int(kv_lens.max())) if kv_lens.numel() else 1
    return num_tokens, max_kv_len


def plan_attention(
    group: AttentionGroup,
    cu_seqlens_q: torch.Tensor,
    kv_lens: torch.Tensor,
    *,
    fixed_split: int = 0,
    plan: torch.Tensor | None = None,
    num_tokens: int | None = None,
    max_kv_len: int | None = None,
) -> torch.Tensor:
    """Cuts a batch into tasks, for the attention calls of all layers of a group in this step.

    Args:
        group: The layers that it serves; a call of another group refuses the plan.
        cu_seqlens_q: `[num_requests + 1]` int32; starts at 0 and does not fall.
        kv_lens: `[num_requests]` int32, the new tokens included. For packed attention: the
            differences of `cu_seqlens_k`.
        fixed_split: KV tokens of a split, a multiple of 64, whatever the batch; makes a request's
            bits independent of the batch around it. 0: as balances best.
        plan: A contiguous int32 tensor of `plan_words` words to overwrite, so that its address
            stays; on a GPU nothing then waits, and the call may be captured in a graph. None: a new
            one that fits this batch.
        num_tokens: For a new plan, query tokens of the batch or more, as `q.size(0)`. None: read
            from `cu_seqlens_q`, which on a GPU waits for the stream.
        max_kv_len: For a new plan with `fixed_split`, the longest KV or more; None: read likewise.

    Returns:
        The plan, `plan` itself where it was given.

    Raises:
        ValueError: A length is out of order, or `plan` is too small. On a GPU lengths are not read
            unless `set_check_values` says so, and a plan that does not fit is found by the kernel:
            a later call on that device raises RuntimeError.
        NotImplementedError: Nothing computes this group.
    """
    if plan is None:
        num_tokens, max_kv_len = _limits(cu_seqlens_q, kv_lens, fixed_split, num_tokens, max_kv_len)
        words = plan_words(
            group,
            max_requests=kv_lens.numel(),
            max_tokens=num_tokens,
            max_kv_len=max_kv_len,
            fixed_split=fixed_split,
            device=kv_lens.device if kv_lens.is_cuda else None,
        )
        plan = torch.empty(words, dtype=torch.int32, device=kv_lens.device)
    run(
        _ops.make_plan,
        cu_seqlens_q,
        kv_lens,
        plan,
        fixed_split=fixed_split,
        **group._as_arguments(),
    )
    return plan


def wait_for(plan: torch.Tensor) -> None:
    """Waits for the stream that a plan of a GPU is made on, before it is read back."""
    if plan.is_cuda:
        torch.cuda.current_stream(plan.device).synchronize()


def plan_summary(plan: torch.Tensor) -> dict[str, Any]:
    """What a plan says, for people and tests.

    Args:
        plan: Made by `plan_attention`.

    Returns:
        `group` (a dict as `AttentionGroup`, dtypes by name), `num_requests`, `num_tokens`,
        `num_tasks`, `num_partials`, `num_combines`, and `longest_task` and `total_work` in (row, KV
        token) pairs.

    Raises:
        ValueError: The tensor holds no plan.
    """
    wait_for(plan)
    summary: dict[str, Any] = json.loads(run(_ops.plan_summary, plan))
    return summary
