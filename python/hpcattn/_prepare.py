# SPDX-License-Identifier: Apache-2.0
"""Kernels of a model before it serves: compiled, or loaded from a cache or from what ships.

`prepare` makes ready every kernel that a model's calls on a GPU can take, so that nothing compiles
in a step; `hpcattn.compilations()` stays where it is.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, Literal

import torch

from hpcattn import _library
from hpcattn._errors import run

KV_CACHE_DTYPES = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


@dataclass(frozen=True)
class PreparedKernel:
    """A kernel that is ready.

    Attributes:
        name: It with its parameters, as errors name it.
        seconds: That it took.
        compiled: Whether NVRTC compiled it; else it was in a cache, shipped, or loaded already.
    """

    name: str
    seconds: float
    compiled: bool


@dataclass(frozen=True)
class PrepareReport:
    """What `prepare` did.

    Attributes:
        kernels: In the order in which they became ready.
        seconds: In all.
        bytes: Written to `output`.
    """

    kernels: tuple[PreparedKernel, ...]
    seconds: float
    bytes: int = 0

    @property
    def compiled(self) -> int:
        """Kernels that NVRTC compiled."""
        return sum(kernel.compiled for kernel in self.kernels)


Progress = Callable[[PreparedKernel, int, int], None]
"""Called with a kernel that is ready, how many are, and how many there are."""


def prepare(
    model: Any = None,
    *,
    num_q_heads: int | None = None,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    dtype: torch.dtype | None = None,
    q_dtype: torch.dtype | None = None,
    kv_cache_dtype: torch.dtype | str = "auto",
    page_size: int = 16,
    softcap: float = 0.0,
    alibi: bool = False,
    norm_policy: Literal["none", "rope_then_norm", "norm_then_rope"] = "none",
    norm_scope: Literal["head", "token"] = "head",
    device: torch.device | str | None = None,
    arch: str | None = None,
    progress: bool | Progress = True,
) -> PrepareReport:
    """Compiles or loads all kernels that a model's calls can take, before it serves.

    Kernels are told apart by head dim, dtypes, softcap, ALiBi and the norm. One kernel serves every
    batch, context, window, sink, page size and number of heads. Several threads compile at once.

    Args:
        model: A Transformers model or its config, from which all of the rest follows that is not
            given; None: give heads, head dim and dtype.
        num_q_heads: Heads of q.
        num_kv_heads: Heads of K and V.
        head_dim: Size of a head.
        dtype: Of activations: float16 or bfloat16.
        q_dtype: Of q as attention gets it; None: `dtype`. float8_e4m3fn: the fused prologue
            quantises it.
        kv_cache_dtype: Of K and V as stored, also by name ("fp8_e4m3", "fp8_e5m2"); "auto":
            `dtype`.
        page_size: Tokens of a page; 0 for packed K and V.
        softcap: Above 0 where the model caps its scores.
        alibi: Whether the model has ALiBi slopes.
        norm_policy: As `rope_norm_store_kv` will get it.
        norm_scope: Likewise.
        device: The GPU; None: the model's, else the current one.
        arch: Without a GPU: fills the cache for this one ("sm_90a", "sm_80").
        progress: True shows a bar on a terminal; a function is told of each kernel; False: neither.

    Returns:
        The kernels, and which of them were compiled.

    Raises:
        ValueError: Something is missing, or contradicts itself.
        NotImplementedError: A GPU computes no such layers.
        RuntimeError: There is no such GPU, or a kernel is in no cache and there is no libnvrtc.
    """
    known = {} if model is None else _of_transformers(model)
    given = {
        "num_q_heads": num_q_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "dtype": dtype,
    }
    described = {**known, **{name: value for name, value in given.items() if value is not None}}
    missing = [name for name in given if name not in described]
    if missing:
        raise ValueError(f"prepare: {', '.join(missing)} not given, and no model that says so.")
    softcap = softcap or described.pop("softcap", 0.0)
    model_device = described.pop("device", None)
    if arch is not None and device is not None:
        raise ValueError("prepare: device and arch are given, expected one of them.")
    where: dict[str, Any] = {"arch": arch}
    if arch is None:
        where = {"device": _device_index(device if device is not None else model_device)}
    variants = model_kernels(
        **described,
        **where,
        q_dtype=q_dtype,
        kv_cache_dtype=kv_cache_dtype,
        page_size=page_size,
        softcap=softcap > 0,
        alibi=alibi,
        norm_policy=norm_policy,
        norm_scope=norm_scope,
    )
    return make_ready(variants, progress=progress, **where)


def model_kernels(
    *,
    dtype: torch.dtype,
    q_dtype: torch.dtype | None = None,
    kv_cache_dtype: torch.dtype | str = "auto",
    **layers: Any,
) -> list[dict[str, Any]]:
    """The kernels of layers that are alike, as the library describes them to itself.

    Args:
        dtype: As for `prepare`.
        q_dtype: As for `prepare`.
        kv_cache_dtype: As for `prepare`.
        **layers: The rest as for `prepare`; `device` is an index here.
    """
    if isinstance(kv_cache_dtype, str):
        if kv_cache_dtype != "auto" and kv_cache_dtype not in KV_CACHE_DTYPES:
            raise ValueError(
                f"prepare: kv_cache_dtype is {kv_cache_dtype!r}, expected auto, "
                f"{' or '.join(KV_CACHE_DTYPES)}, or a torch.dtype."
            )
        kv_cache_dtype = KV_CACHE_DTYPES.get(kv_cache_dtype, dtype)
    dtypes = {"dtype": dtype, "q_dtype": q_dtype or dtype, "kv_cache_dtype": kv_cache_dtype}
    text = run(_library.load().model_kernels, **dtypes, **layers)
    variants: list[dict[str, Any]] = json.loads(text)
    return variants


def shipped_kernels(arch: str = "sm_90a") -> list[dict[str, Any]]:
    """The kernels that ship built with the package; docs/torch.md lists them."""
    variants: list[dict[str, Any]] = json.loads(run(_library.load().shipped_kernels, arch))
    return variants


def make_ready(
    variants: Iterable[dict[str, Any]], *, progress: bool | Progress = False, **where: Any
) -> PrepareReport:
    """Loads or compiles kernels, several at once.

    Args:
        variants: From `model_kernels`.
        progress: As for `prepare`.
        **where: `device` (an index), or `arch` with or without `folder`.
    """
    start = time.perf_counter()
    listed = list(variants)
    op = _library.load().prepare_kernel
    ready: list[PreparedKernel] = []
    written = 0
    with _shown(progress) as show, ThreadPoolExecutor(_threads(len(listed))) as pool:
        # The operator runs without Python's lock.
        waiting = {pool.submit(run, op, **variant, **where): variant for variant in listed}
        try:
            for done in as_completed(waiting):
                answer = json.loads(done.result())
                name = waiting[done]["name"]
                ready.append(PreparedKernel(name, answer["seconds"], answer["compiled"]))
                written += answer["bytes"]
                show(ready[-1], len(ready), len(listed))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return PrepareReport(tuple(ready), time.perf_counter() - start, written)


def _threads(most: int) -> int:
    return max(1, min(most, len(os.sched_getaffinity(0))))


class _shown:  # noqa: N801  # reads as a word where it is used
    """A bar on a terminal, a function of the caller's, or nothing."""

    def __init__(self, progress: bool | Progress) -> None:
        self._progress = progress
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if callable(self._progress):
            return self._progress
        if self._progress:
            try:
                from hpcattn.cli.progress import PrepareBar
            except ImportError:  # without rich
                return lambda *_: None
            self._bar = PrepareBar(lines=False)
            bar: Progress = self._bar.__enter__()
            return bar
        return lambda *_: None

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.__exit__(*error)


def _device_index(device: torch.device | str | None) -> int:
    place = torch.device("cuda" if device is None else device)
    if place.type != "cuda":
        raise ValueError(
            f"prepare: device is {place}, expected a CUDA device: nothing is compiled for the CPU. "
            "Without a GPU give arch, as 'sm_90a'."
        )
    if place.index is not None:
        return place.index
    return torch.cuda.current_device() if torch.cuda.is_available() else 0


def _of_transformers(model: Any) -> dict[str, Any]:
    """What a Transformers model or config says of its layers."""
    config = getattr(model, "config", model)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    heads = getattr(text, "num_attention_heads", None)
    if heads is None:
        raise ValueError(
            f"prepare: {type(model).__name__} is no Transformers model with num_attention_heads in "
            "its config. Give num_q_heads, num_kv_heads, head_dim and dtype instead."
        )
    dtype = getattr(model, "dtype", None) or getattr(config, "dtype", None)
    described: dict[str, Any] = {
        "num_q_heads": heads,
        "num_kv_heads": getattr(text, "num_key_value_heads", None) or heads,
        "head_dim": getattr(text, "head_dim", None) or text.hidden_size // heads,
        "softcap": getattr(text, "attn_logit_softcapping", None) or 0.0,
    }
    if isinstance(dtype, torch.dtype):
        described["dtype"] = dtype
    device = getattr(model, "device", None)
    if isinstance(device, torch.device) and device.type == "cuda":
        described["device"] = device
    return described
