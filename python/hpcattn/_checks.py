# SPDX-License-Identifier: Apache-2.0
"""Checks of tensor arguments that need no data, worded as the native library's.

The native library checks every real call, these check what has no data: fake and meta tensors. A
test puts the same mistakes before both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from hpcattn import _library

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
WIDE = (torch.float32, torch.float16, torch.bfloat16)
INDEX = (torch.int32, torch.int64)


def cpp_name(dtype: torch.dtype) -> str:
    """A dtype by the native library's name, as "float8_e4m3"."""
    return str(dtype).removeprefix("torch.").removesuffix("fn")


def join_or(words: Sequence[object]) -> str:
    """The words as "a, b or c"."""
    *first, last = map(str, words)
    return f"{', '.join(first)} or {last}" if first else last


def text_of(tensor: torch.Tensor) -> str:
    """A tensor as "float32[2, 8, 64] on cpu"."""
    return f"{cpp_name(tensor.dtype)}{list(tensor.shape)} on {tensor.device}"


def _tensors_of(arguments: Mapping[str, Any]) -> list[tuple[str, torch.Tensor]]:
    tensors: list[tuple[str, torch.Tensor]] = []
    for arg, value in arguments.items():
        if isinstance(value, torch.Tensor):
            tensors.append((arg, value))
        elif isinstance(value, (list, tuple)):
            entries = enumerate(value)
            tensors += [(f"{arg}[{i}]", t) for i, t in entries if isinstance(t, torch.Tensor)]
    return tensors


class Checks:
    """The checks of one call; every message begins with the operator's name.

    Args:
        op: The operator's name.
        arguments: All arguments by name; their tensors must share a device and need no gradient.
    """

    def __init__(self, op: str, arguments: Mapping[str, Any]) -> None:
        self._op = op
        tensors = _tensors_of(arguments)
        grad_mode = torch.is_grad_enabled()
        for arg, tensor in tensors:
            first_arg, first = tensors[0]
            self.that(
                tensor.device == first.device,
                f"{arg} is on {tensor.device}, expected {first.device} (where {first_arg} is). All "
                "tensors of a call must be on one device: move it there.",
            )
            if grad_mode and tensor.requires_grad:
                self.unsupported(
                    f"{arg} requires grad, and no gradient is computed here. Call under "
                    f"torch.no_grad() or torch.inference_mode(), or pass {arg}.detach()."
                )

    def that(self, condition: bool, message: str) -> None:
        """Raises ValueError where the condition does not hold."""
        if not condition:
            raise ValueError(f"{self._op}: {message}")

    def unsupported(self, message: str) -> NoReturn:
        """Raises NotImplementedError."""
        raise NotImplementedError(f"{self._op}: {message}")

    def shape(self, arg: str, tensor: torch.Tensor, sizes: Sequence[int | None]) -> None:
        """These sizes, where None is any."""
        fits = tensor.dim() == len(sizes) and all(
            size is None or tensor.shape[i] == size for i, size in enumerate(sizes)
        )
        if not fits:
            wanted = ", ".join("any" if size is None else str(size) for size in sizes)
            self.that(False, f"{arg} is {text_of(tensor)}, expected shape [{wanted}].")

    def dtype(self, arg: str, tensor: torch.Tensor, allowed: Sequence[torch.dtype]) -> None:
        """One of the dtypes."""
        if tensor.dtype not in allowed:
            names = " or ".join(map(cpp_name, allowed))
            self.that(False, f"{arg} has dtype {cpp_name(tensor.dtype)}, expected {names}.")

    def tensor(
        self,
        arg: str,
        tensor: torch.Tensor | None,
        sizes: Sequence[int | None],
        allowed: Sequence[torch.dtype],
    ) -> None:
        """Shape and dtype, of one that may be left out."""
        if tensor is not None:
            self.shape(arg, tensor, sizes)
            self.dtype(arg, tensor, allowed)

    def last_contiguous(self, arg: str, tensor: torch.Tensor) -> None:
        """Stride 1 in the last dim."""
        self.that(
            tensor.shape[-1] <= 1 or tensor.stride(-1) == 1,
            f"{arg} has stride {tensor.stride(-1)} in its last dim, expected 1. Pass a tensor "
            "whose last dim is contiguous.",
        )

    def written(self, arg: str, tensor: torch.Tensor) -> None:
        """No stride 0: other strides that lay entries over each other are for a real call."""
        for dim in range(tensor.dim()):
            self.that(
                tensor.shape[dim] <= 1 or tensor.stride(dim) != 0,
                f"{arg} is written and its strides lay entries over each other, expected memory of "
                "its own for each.",
            )

    def one_of(self, arg: str, value: str, allowed: Sequence[str]) -> None:
        """One of the words."""
        names = " or ".join(f"'{word}'" for word in allowed)
        self.that(value in allowed, f"{arg} is '{value}', expected {names}.")

    def scale(
        self, arg: str, scale: torch.Tensor | None, fp8: bool, of: str, num_heads: int
    ) -> None:
        """A float32 scale `[1]` or `[num_heads]`, which goes with float8 and with nothing else."""
        if not fp8:
            self.that(
                scale is None,
                f"{arg} is given and {of} is not float8, so it would not be used. Leave it out.",
            )
            return
        if scale is None:
            self.that(False, f"{arg} is not given, expected float32 [1] or [{num_heads}].")
            return
        self.that(
            scale.dim() == 1 and (scale.shape[0] == 1 or scale.shape[0] == num_heads),
            f"{arg} is {text_of(scale)}, expected float32 [1] or [{num_heads}].",
        )
        self.dtype(arg, scale, (torch.float32,))

    def heads(self, q: torch.Tensor, k_arg: str, k: torch.Tensor) -> None:
        """Query heads that are a multiple of the KV heads."""
        num_heads, num_kv_heads = q.shape[1], k.shape[-2]
        self.that(
            num_kv_heads > 0 and num_heads > 0 and num_heads % num_kv_heads == 0,
            f"q has {num_heads} heads and {k_arg} has {num_kv_heads}, expected a multiple of the "
            "KV heads.",
        )

    def head_dim(self, head_dim: int) -> None:
        """A head dim that something computes."""
        head_dims = _library.support()["head_dims"]
        if head_dim not in head_dims:
            self.unsupported(f"head_dim is {head_dim}, supported are {join_or(head_dims)}.")

    def fixed_split(self, fixed_split: int) -> None:
        """None, or whole tiles of a plan."""
        self.that(
            fixed_split >= 0 and fixed_split % 64 == 0,
            f"fixed_split is {fixed_split}, expected 0 or a multiple of 64.",
        )

    def page_size(self, page_size: int) -> None:
        """A page size that something computes."""
        multiple = _library.support()["page_size_multiple"]
        if page_size <= 0 or page_size % multiple != 0:
            self.unsupported(f"page size is {page_size}, supported is a multiple of {multiple}.")
