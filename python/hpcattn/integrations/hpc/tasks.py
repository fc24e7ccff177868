# SPDX-License-Identifier: Apache-2.0
"""The decode schedule of a step, as callers ask for it."""

from __future__ import annotations

import torch

from hpcattn.integrations.hpc.steps import begin_step

# The map is a mark, not a buffer: steps.py says where the plan is.
_MAP_BYTES = 64


def _check_sizes(op: str, **sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{op}: {name} is {size}, expected 1 or more.")


def get_attention_decode_task_workspace(
    max_num_batch: int, max_seqlen: int, num_head_kv: int, min_process_len: int = 512
) -> torch.Tensor:
    """A task map, for one attention group and one stream of steps.

    Args:
        max_num_batch: Most requests of a step. Any number is served.
        max_seqlen: Most KV tokens of a request. Any number is served.
        num_head_kv: KV heads.
        min_process_len: KV tokens that are worth a task of their own; the plan finds its own.

    Returns:
        An int8 tensor on the current CUDA device, without CUDA on the CPU; what it holds is no
        one's business but this module's.

    Raises:
        ValueError: A size is below 1.
    """
    _check_sizes(
        "get_attention_decode_task_workspace",
        max_num_batch=max_num_batch,
        max_seqlen=max_seqlen,
        num_head_kv=num_head_kv,
        min_process_len=min_process_len,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    task_map = torch.zeros(_MAP_BYTES, dtype=torch.int8, device=device)
    begin_step(task_map)
    return task_map


def assign_attention_decode_task(
    num_seq_kvcache: torch.Tensor,
    task_map: torch.Tensor,
    num_head_kv: int,
    mtp: int,
    new_kv_included: bool,
    min_process_len: int = 512,
) -> torch.Tensor:
    """Begins a step: the first attention call with this task map plans, its other layers follow.

    To be called once a step, before its layers, whenever lengths have changed. Launches nothing and
    waits for nothing; within a graph capture as well.

    Args:
        num_seq_kvcache: `[num_requests]` int32, on the device or the CPU.
        task_map: From `get_attention_decode_task_workspace`.
        num_head_kv: KV heads.
        mtp: Query rows of a request.
        new_kv_included: Whether the lengths count the new tokens.
        min_process_len: As above.

    Returns:
        `task_map`.

    Raises:
        ValueError: Lengths of another rank or dtype, or a size that makes no sense.
    """
    op = "assign_attention_decode_task"
    if num_seq_kvcache.dim() != 1 or num_seq_kvcache.dtype != torch.int32:
        raise ValueError(
            f"{op}: num_seq_kvcache is {num_seq_kvcache.dtype} of shape "
            f"{list(num_seq_kvcache.shape)}, expected torch.int32 of shape [num_requests]."
        )
    if mtp < 0:
        raise ValueError(f"{op}: mtp is {mtp}, expected 0 or more.")
    _check_sizes(op, num_head_kv=num_head_kv, min_process_len=min_process_len)
    begin_step(task_map)
    return task_map
