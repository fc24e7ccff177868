# SPDX-License-Identifier: Apache-2.0
"""The shapes that are measured: the bars' own, sweeps, and whatever the caller names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from hpcattn.bench.batch import Batch, parse_batch, show_count

# Names as hpcattn prints them, and torch's names for the same.
DTYPES: dict[str, str] = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float8_e4m3": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2",
}
_SHORT = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3",
    "e4m3": "float8_e4m3",
    "e5m2": "float8_e5m2",
    "float8_e4m3fn": "float8_e4m3",
}
_SIZE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3": 1, "float8_e5m2": 1}

Layout = Literal["NHD", "HND"]


def parse_dtype(text: str) -> str:
    """`bf16` or `bfloat16` -> `bfloat16`. Raises ValueError for any other name."""
    name = _SHORT.get(text.strip().lower(), text.strip().lower())
    if name not in DTYPES:
        known = ", ".join([*DTYPES, *_SHORT])
        raise ValueError(f"dtype {text!r} is unknown. Write one of {known}.")
    return name


@dataclass(frozen=True)
class Heads:
    """The attention geometry of a layer."""

    num_q_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128

    def __post_init__(self) -> None:
        """Refuses what no tensor can be made of; what hpcattn supports is its own to say."""
        if min(self.num_q_heads, self.num_kv_heads, self.head_dim) < 1:
            raise ValueError(
                f"{self.num_q_heads}:{self.num_kv_heads} heads of {self.head_dim}: expected at "
                "least 1 of each"
            )
        if self.num_q_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_q_heads} query heads over {self.num_kv_heads} KV heads: expected a "
                "multiple, since each KV head serves a group of query heads"
            )

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.num_q_heads // self.num_kv_heads

    @property
    def text(self) -> str:
        """`32:8 heads of 128`."""
        return f"{self.num_q_heads}:{self.num_kv_heads} heads of {self.head_dim}"


@dataclass(frozen=True)
class AttentionCase:
    """Attention over pages of one batch, beside torch's over the same K and V."""

    batch: Batch
    heads: Heads = Heads()
    page_size: int = 16
    dtype: str = "bfloat16"
    kv_dtype: str = ""
    window: int | None = None
    layout: Layout = "NHD"
    sweep: str = ""

    def __post_init__(self) -> None:
        """Resolves the cache's dtype: q's where none is named."""
        if not self.kv_dtype:
            object.__setattr__(self, "kv_dtype", self.dtype)
        if self.page_size < 1:
            raise ValueError(f"page size {self.page_size}: expected at least 1 token")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window {self.window}: expected at least 1 token")

    @property
    def kind(self) -> str:
        """`decode`: one new token a request; `prefill`: all tokens new; else `chunk`."""
        if all(rows == 1 for rows in self.batch.rows):
            return "decode"
        return "prefill" if self.batch.rows == self.batch.kv_lens else "chunk"

    @property
    def name(self) -> str:
        """What tells this case from its neighbours."""
        batch = self.batch.text if self.kind != "prefill" else self.batch.text.split(":")[0]
        parts = [self.kind, batch, self.dtype]
        default = AttentionCase(self.batch)
        if self.kv_dtype != self.dtype:
            parts.append(f"kv {self.kv_dtype}")
        if self.heads != default.heads:
            parts.append(self.heads.text)
        if self.page_size != default.page_size:
            parts.append(f"page {self.page_size}")
        if self.window is not None:
            parts.append(f"window {show_count(self.window)}")
        if self.layout != default.layout:
            parts.append(self.layout)
        return " ".join(parts)

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V that at least one row sees: the least that must be read."""
        tokens = 0
        for kv_len, rows in zip(self.batch.kv_lens, self.batch.rows, strict=True):
            seen = kv_len if self.window is None else min(kv_len, self.window + rows - 1)
            tokens += seen if rows else 0
        per_token = 2 * self.heads.num_kv_heads * self.heads.head_dim
        return tokens * per_token * _SIZE_BYTES[self.kv_dtype]

    @property
    def q_bytes(self) -> int:
        """Bytes of q, and of the output."""
        per_token = self.heads.num_q_heads * self.heads.head_dim * _SIZE_BYTES[self.dtype]
        return self.batch.num_tokens * per_token

    @property
    def flops(self) -> int:
        """Of both products, on visible pairs alone."""
        pairs = self.batch.pairs(window=self.window)
        return 4 * self.heads.head_dim * self.heads.num_q_heads * pairs

    @property
    def memory_bytes(self) -> int:
        """What its tensors take, for ours and for SDPA, K and V expanded to all heads included."""
        tokens = sum(self.batch.kv_lens)
        per_head = 2 * self.heads.head_dim * tokens
        pages = per_head * self.heads.num_kv_heads * _SIZE_BYTES[self.kv_dtype]
        dense = per_head * self.heads.num_kv_heads * _SIZE_BYTES[self.dtype]
        return pages + 2 * dense  # pages, contiguous, gathered

    @property
    def expanded_bytes(self) -> int:
        """What K and V take further when every query head has its own copy."""
        per_head = 2 * self.heads.head_dim * sum(self.batch.kv_lens)
        return per_head * self.heads.num_q_heads * _SIZE_BYTES[self.dtype]

    def params(self) -> dict[str, object]:
        """For a JSON report."""
        return {
            "batch": self.batch.text,
            "num_requests": self.batch.num_requests,
            "num_tokens": self.batch.num_tokens,
            "max_kv_len": max(self.batch.kv_lens),
            "num_q_heads": self.heads.num_q_heads,
            "num_kv_heads": self.heads.num_kv_heads,
            "head_dim": self.heads.head_dim,
            "page_size": self.page_size,
            "dtype": self.dtype,
            "kv_dtype": self.kv_dtype,
            "window": self.window,
            "layout": self.layout,
        }


@dataclass(frozen=True)
class RopeCase:
    """The fused prologue (QK-norm, RoPE, KV write) beside the same in unfused torch."""

    batch: Batch
    heads: Heads = Heads()
    page_size: int = 16
    dtype: str = "bfloat16"

    @property
    def kind(self) -> str:
        """The operator's name; reports sort by it."""
        return "rope_norm_store_kv"

    @property
    def name(self) -> str:
        """What tells this case from its neighbours."""
        tokens = show_count(self.batch.num_tokens)
        name = f"rope_norm_store_kv {tokens} tokens {self.dtype}"
        return name if self.heads == Heads() else f"{name} {self.heads.text}"

    @property
    def bytes_moved(self) -> int:
        """q, k and v read once and written once."""
        heads = self.heads.num_q_heads + 2 * self.heads.num_kv_heads
        per_token = heads * self.heads.head_dim * _SIZE_BYTES[self.dtype]
        return 2 * self.batch.num_tokens * per_token

    def params(self) -> dict[str, object]:
        """For a JSON report."""
        return {
            "num_tokens": self.batch.num_tokens,
            "num_q_heads": self.heads.num_q_heads,
            "num_kv_heads": self.heads.num_kv_heads,
            "head_dim": self.heads.head_dim,
            "page_size": self.page_size,
            "dtype": self.dtype,
            "norm_policy": "norm_then_rope",
        }


@dataclass(frozen=True)
class StoreCase:
    """K and V of new tokens into pages, beside torch's index_copy_."""

    num_tokens: int
    heads: Heads = Heads()
    page_size: int = 16
    dtype: str = "bfloat16"

    @property
    def kind(self) -> str:
        """The operator's name; reports sort by it."""
        return "store_kv"

    @property
    def name(self) -> str:
        """What tells this case from its neighbours."""
        name = f"store_kv {show_count(self.num_tokens)} tokens {self.dtype}"
        return name if self.heads == Heads() else f"{name} {self.heads.text}"

    @property
    def bytes_moved(self) -> int:
        """K and V read once and written once."""
        per_token = 2 * self.heads.num_kv_heads * self.heads.head_dim * _SIZE_BYTES[self.dtype]
        return 2 * self.num_tokens * per_token

    def params(self) -> dict[str, object]:
        """For a JSON report."""
        return {
            "num_tokens": self.num_tokens,
            "num_kv_heads": self.heads.num_kv_heads,
            "head_dim": self.heads.head_dim,
            "page_size": self.page_size,
            "dtype": self.dtype,
        }


@dataclass(frozen=True)
class PlanCase:
    """The plan of a step alone."""

    attention: AttentionCase

    @property
    def kind(self) -> str:
        """Reports sort by it."""
        return "plan"

    @property
    def name(self) -> str:
        """What tells this case from its neighbours."""
        return f"plan of {self.attention.name}"

    def params(self) -> dict[str, object]:
        """For a JSON report."""
        return self.attention.params()


Case = AttentionCase | RopeCase | StoreCase | PlanCase


def standard_suite() -> list[Case]:
    """The shapes that the bars are about, and the fused prologue."""
    cases: list[Case] = []
    for dtype in ("float32", "bfloat16"):
        cases.append(AttentionCase(parse_batch("16x2K"), dtype=dtype))
    for dtype in ("float32", "bfloat16"):
        cases.append(AttentionCase(parse_batch("1x2K:2K"), dtype=dtype))
    for tokens in ("16x2K:1", "1x2K:2K"):
        for dtype in ("float32", "bfloat16"):
            cases.append(RopeCase(parse_batch(tokens), dtype=dtype))
    return cases


def full_suite() -> list[Case]:
    """The standard shapes, then sweeps of context, batch, page size, cache dtype and geometry."""
    cases = standard_suite()
    for dtype in ("float32", "bfloat16"):
        for context in ("1K", "2K", "4K", "8K", "16K", "32K"):
            batch = parse_batch(f"16x{context}")
            cases.append(AttentionCase(batch, dtype=dtype, sweep="context"))
        for count in (1, 2, 4, 8, 16, 32, 64):
            batch = parse_batch(f"{count}x2K")
            cases.append(AttentionCase(batch, dtype=dtype, sweep="batch"))
    base = AttentionCase(parse_batch("16x2K"))
    cases += [replace(base, page_size=size, sweep="page") for size in (16, 32, 64, 128, 256)]
    cases += [
        replace(base, kv_dtype="float8_e4m3", sweep="fp8"),
        replace(base, kv_dtype="float8_e5m2", sweep="fp8"),
        replace(base, dtype="float16", kv_dtype="float16", sweep="dtype"),
        replace(base, layout="HND", sweep="layout"),
        replace(base, window=1024, sweep="window"),
        replace(base, batch=parse_batch("1x32K+15x2K"), sweep="uneven"),
        replace(base, batch=parse_batch("16x2K:4"), sweep="speculative"),
    ]
    geometries = (Heads(9, 3, 64), Heads(32, 32, 96), Heads(16, 8, 256), Heads(64, 8, 128))
    cases += [replace(base, heads=heads, sweep="geometry") for heads in geometries]
    for tokens in ("128", "512", "4K", "8K"):
        batch = parse_batch(f"1x{tokens}:{tokens}")
        cases.append(AttentionCase(batch, sweep="prefill"))
    cases.append(AttentionCase(parse_batch("4x4K:512"), sweep="chunk"))
    return _without_repeats(cases)


# Of GPU cases: the geometry of a large model, and pages as engines on GPUs take them.
_GPU_HEADS = Heads(64, 8, 128)
_GPU_PAGE = 64


def gpu_suite() -> list[Case]:
    """The shapes that a GPU's bars are about, and every other operator of a step."""

    def attention(batch: str, kv_dtype: str = "bfloat16") -> AttentionCase:
        return AttentionCase(parse_batch(batch), _GPU_HEADS, _GPU_PAGE, kv_dtype=kv_dtype)

    cases: list[Case] = []
    # The last: three drafted tokens besides each request's own.
    for batch in ("64x4K", "1x1K", "1x128K+31x4K", "64x4K:4"):
        cases += [attention(batch, kv_dtype) for kv_dtype in ("bfloat16", "float8_e4m3")]
    cases += [attention(batch) for batch in ("1x8K:8K", "1x2K:2K", "1x32K:32K", "16x512:512")]
    # A decode step's rows, and a prefill's; pages beyond them would only take memory.
    cases += [RopeCase(parse_batch(b), _GPU_HEADS, _GPU_PAGE) for b in ("256x128:1", "1x8K:8K")]
    cases += [StoreCase(tokens, _GPU_HEADS, _GPU_PAGE) for tokens in (256, 8192)]
    cases += [PlanCase(attention(batch)) for batch in ("64x4K", "1x128K+31x4K", "1x8K:8K")]
    return cases


def gpu_full_suite() -> list[Case]:
    """The shapes of `gpu_suite`, then sweeps of context, batch, page size and geometry."""
    cases = gpu_suite()
    base = AttentionCase(parse_batch("64x4K"), _GPU_HEADS, _GPU_PAGE)
    for context in ("1K", "2K", "4K", "8K", "16K", "32K"):
        cases.append(replace(base, batch=parse_batch(f"32x{context}"), sweep="context"))
    for count in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        cases.append(replace(base, batch=parse_batch(f"{count}x4K"), sweep="batch"))
    cases += [replace(base, page_size=size, sweep="page") for size in (16, 32, 64, 128, 256)]
    cases += [
        replace(base, dtype="float16", kv_dtype="float16", sweep="dtype"),
        replace(base, layout="HND", sweep="layout"),
        replace(base, window=1024, sweep="window"),
    ]
    geometries = (Heads(8, 1), Heads(16, 2, 256), Heads(64, 8, 64), Heads(32, 32, 96))
    for batch in ("64x4K", "1x8K:8K"):
        steps = parse_batch(batch)
        cases += [replace(base, batch=steps, heads=h, sweep="geometry") for h in geometries]
    return _without_repeats(cases)


def _without_repeats(cases: list[Case]) -> list[Case]:
    """Drops a case measured under the same name before, keeping the sweeps that it stands in."""
    kept: dict[str, Case] = {}
    for case in cases:
        first = kept.get(case.name)
        if first is None:
            kept[case.name] = case
        elif isinstance(first, AttentionCase) and isinstance(case, AttentionCase):
            sweeps = [name for name in (first.sweep, case.sweep) if name]
            kept[case.name] = replace(first, sweep=",".join(sweeps))
    return list(kept.values())


SUITES = {"standard": standard_suite, "full": full_suite}
GPU_SUITES = {"standard": gpu_suite, "full": gpu_full_suite}
