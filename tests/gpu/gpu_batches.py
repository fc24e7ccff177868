# SPDX-License-Identifier: Apache-2.0
"""Batches of the CPU tests on a GPU, strides kept, and how far the two may differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import torch

from batches import FP8, Batch, make_batch

T = TypeVar("T")
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
E4M3, E5M2 = FP8

# Decode, speculative rows, a prefill, a chunk, an empty request, one without new tokens, one token.
MIXED = [(1, 333), (3, 18), (20, 20), (90, 400), (0, 0), (0, 5), (1, 1)]


def on_gpu(value: T, device: str = "cuda") -> T:
    """Tensors with the same strides over a copy of their whole memory; the rest as it is."""
    result: Any = value
    if isinstance(value, torch.Tensor):
        whole = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
        result = whole.to(device).as_strided(value.size(), value.stride(), value.storage_offset())
    elif isinstance(value, Batch):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        result = Batch(**on_gpu(fields, device))
    elif isinstance(value, Mapping):
        result = {key: on_gpu(entry, device) for key, entry in value.items()}
    elif isinstance(value, (list, tuple)):
        result = type(value)(on_gpu(entry, device) for entry in value)
    return result


def gpu_batch(**options: Any) -> Batch:
    """`make_batch` in bfloat16 with a head dim that ships built, on the GPU."""
    return on_gpu(make_batch(**{"q_dtype": BF16, "head_dim": 128, **options}))


def assert_near(
    got: torch.Tensor,
    cpu: torch.Tensor,
    what: str,
    eps: float,
    stored_as: torch.dtype | None = None,
) -> None:
    """Element by element, where both have rounded.

    Args:
        got: From the GPU.
        cpu: From the CPU; infinite where `got` is.
        what: Begins the message of a failure.
        eps: Of the products' dtype; weights are rounded to it, values are about 1.
        stored_as: The dtype that both were rounded to; None: the one that they have.
    """
    assert got.dtype == cpu.dtype, f"{what}: {got.dtype}, on the CPU {cpu.dtype}"
    got64, cpu64 = got.cpu().to(torch.float64), cpu.to(torch.float64)
    info = torch.finfo(stored_as or got.dtype)
    allowed = info.eps * cpu64.abs() + info.eps * info.smallest_normal + eps * (1 + cpu64.abs())
    error = torch.where(got64 == cpu64, 0.0, (got64 - cpu64).abs())
    bad = ~(error <= allowed)
    if bool(bad.any()):
        worst = int(torch.where(bad, error.nan_to_num(float("inf")), 0.0).argmax())
        where = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), got.shape))
        raise AssertionError(
            f"{what}: {int(bad.sum())} of {got.numel()} elements differ; the worst at {where}: GPU "
            f"{float(got64[where])}, CPU {float(cpu64[where])}, allowed {float(allowed[where]):.3g}"
        )


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """NaN equals NaN of the same bits."""
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
