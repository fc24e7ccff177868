# SPDX-License-Identifier: Apache-2.0
"""Checks of tensor arguments that need no data, worded as the native library's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from hpcattn import _library

_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_NAMES = {
    torch.float8_e4m3fn: "float8_e4m3",
}


def cpp_name(dtype: torch.dtype) -> str:
    """A dtype by the native library's name: "float8_e4m3"."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))


def join_or(words: Sequence[object]) -> str:
    """"a, b or c"."""
    *first, last = map(str, words)
    return f"{', '.join(first)} or {last}" if first else last


def _text(tensor: torch.Tensor) -> str:
    return f"{cpp_name(tensor.dtype)}{list(tensor.shape)} on {tensor.device}"


class Checks:
    """The checks of one call; every message begins with the operator's name.

    Args:
        op: The operator's name.
        arguments: All arguments by name; their tensors must share a device and need no gradient.
    """

    def __init__(self, op: str, arguments: Mapping[str, Any]) -> None:
        self._op = op
        tensors: list[tuple[str, torch.Tensor]] = []
        for arg, value in arguments.items():
            if isinstance(value, torch.Tensor):
                tensors.append((arg, value))
            elif isinstance(value, (list, tuple)):
                tensors += [
                    (f"{arg}[{i}]", entry)
                    for i, entry in enumerate(value)
                    if isinstance(entry, torch.Tensor)
                ]
        grad_mode = torch.is_grad_enabled()
        for arg, tensor in tensors:
            self.that(
                tensor.device == tensors[0][1].device,
                f"{arg} is on {tensor.device}, expected {tensors[0][1].device} (where {tensors[0][0]} "
                "is). All tensors of a call must be on one device: move it there.",
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
        wanted = ", ".join("any" if size is None else str(size) for size in sizes)
        self.that(fits, f"{arg} is {_text(tensor)}, expected shape [{wanted}].")

    def same_shape(
        self, arg: str, tensor: torch.Tensor, like_arg: str, like: torch.Tensor
    ) -> None:
        """The shape of another tensor."""
        self.that(
            tensor.dim() == like.dim()
            and all(a == b for a, b in zip(tensor.shape, like.shape, strict=True)),
            f"{arg} is {_text(tensor)}, expected shape {list(like.shape)} (as {like_arg} has).",
        )

    def dtype(self, arg: str, tensor: torch.Tensor, allowed: Sequence[torch.dtype]) -> None:
        """One of the dtypes."""
        self.that(
            tensor.dtype in allowed,
            f"{arg} has dtype {cpp_name(tensor.dtype)}, expected "
            f"{' or '.join(map(cpp_name, allowed))}.",
        )

    def optional(
        self,
        arg: str,
        tensor: torch.Tensor | None,
        sizes: Sequence[int | None],
        allowed: Sequence[torch.dtype] | None,
    ) -> None:
        """Shape and dtype of a tensor that may be left out."""
        if tensor is not None:
            self.shape(arg, tensor, sizes)
            if allowed is not None:
                self.dtype(arg, tensor, allowed)

    def last_contiguous(self, arg: str, tensor: torch.Tensor) -> None:
        """Stride 1 in the last dim."""
        self.that(
            tensor.shape[-1] <= 1 or tensor.stride(-1) == 1,
            f"{arg} has stride {tensor.stride(-1)} in its last dim, expected 1. Pass a tensor whose last "
            "dim is contiguous.",
        )

    def scale(self, arg: str, tensor: torch.Tensor | None, num_heads: int) -> None:
        """A float32 scale `[1]` or `[num_heads]`, where it is given."""
        if tensor is None:
            return
        self.that(
            tensor.dim() == 1 and (tensor.shape[0] == 1 or tensor.shape[0] == num_heads),
            f"{arg} is {_text(tensor)}, expected float32 [1] or [{num_heads}].",
        )
        self.dtype(arg, tensor, (torch.float32,))

    def kv_scales(
        self,
        required: bool,
        k_scale: torch.Tensor | None,
        v_scale: torch.Tensor | None,
        num_heads: int,
    ) -> None:
        """Scales of K and V, which a float8 cache requires."""
        for arg, tensor in (("k_scale", k_scale), ("v_scale", v_scale)):
            self.that(
                tensor is not None or not required,
                f"{arg} is not given, expected float32 [1] or [{num_heads}] for float8 K and V.",
            )
            self.scale(arg, tensor, num_heads)

    def lengths(
        self, cu_seqlens_q: torch.Tensor, kv_lens: torch.Tensor, num_requests: int | None
    ) -> None:
        """`cu_seqlens_q` and `kv_lens` of as many requests."""
        self.shape("kv_lens", kv_lens, (num_requests,))
        self.dtype("kv_lens", kv_lens, (torch.int32,))
        self.shape("cu_seqlens_q", cu_seqlens_q, (kv_lens.shape[0] + 1,))
        self.dtype("cu_seqlens_q", cu_seqlens_q, (torch.int32,))

    def cache(
        self, k_cache: torch.Tensor, v_cache: torch.Tensor, num_kv_heads: int, head_dim: int
    ) -> None:
        """A K and a V cache alike, of these heads."""
        self.shape("k_cache", k_cache, (None, None, num_kv_heads, head_dim))
        self.same_shape("v_cache", v_cache, "k_cache", k_cache)
        self.dtype("v_cache", v_cache, (k_cache.dtype,))

    def stored_as(self, arg: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
        """A pair of dtypes, given and stored, that the library converts."""
        name = cpp_name(tensor.dtype)
        wide = tensor.dtype in (torch.float32, torch.float16, torch.bfloat16)
        if not wide or (dtype != tensor.dtype and dtype not in _FP8):
            self.unsupported(f"{arg} is {name} and is to be stored as {cpp_name(dtype)}.")

    def head_dim(self, head_dim: int) -> None:
        """A head dim that attention takes."""
        head_dims = _library.support()["head_dims"]
        if head_dim not in head_dims:
            self.unsupported(f"head_dim is {head_dim}, expected {join_or(head_dims)}.")

    def page_size(self, page_size: int) -> None:
        """A page size that attention takes."""
        multiple = _library.support()["page_size_multiple"]
        if page_size <= 0 or page_size % multiple != 0:
            self.unsupported(f"page size is {page_size}, expected a multiple of {multiple}.")

    def attention_dtypes(self, q: torch.Tensor, kv: torch.Tensor, out: torch.Tensor) -> None:
        """Dtypes of q, of K and V, and of out that go together."""
        table = _library.support()["attention"]
        row = table.get(cpp_name(q.dtype))
        if row is None:
            self.unsupported(f"q is {cpp_name(q.dtype)}, expected {join_or(list(table))}.")
        for arg, tensor, allowed in (("K and V", kv, row["kv"]), ("out", out, row["out"])):
            if cpp_name(tensor.dtype) not in allowed:
                self.unsupported(
                    f"{arg} {cpp_name(tensor.dtype)} with a {cpp_name(q.dtype)} q, expected "
                    f"{join_or(allowed)}."
                )
