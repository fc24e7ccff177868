# SPDX-License-Identifier: Apache-2.0
"""Every mistake is refused with its reason: by a real call and, where a shape tells, by a fake one.

A refused call has written nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

import hpcattn
from batches import FP8, cumulative, int32
from calls import CALLS, Arguments, cast, change, merge, packed, paged, plan, rope, store, strided

E4M3, E5M2 = FP8
INVALID = ValueError
UNSUPPORTED = NotImplementedError
NORM = {"norm_policy": "norm_then_rope", "norm_eps": 1e-6}

# (call, what is wrong, error, its text)
BY_SHAPE = [
    (
        paged,
        change(q=torch.randn(2, 64)),
        INVALID,
        r"q is float32\[2, 64\].* expected shape \[any, any, any\]",
    ),
    (paged, change(q=strided), INVALID, "q has stride 2 in its last dim, expected 1"),
    (paged, change(k_cache=torch.randn(3, 16, 128)), INVALID, "k_cache is .* expected shape"),
    (paged, change(v_cache=lambda t: t[:, :8]), INVALID, "v_cache is .* expected shape"),
    (paged, change(k_cache=strided), INVALID, "k_cache has stride 2"),
    (
        paged,
        change(v_cache=cast(E4M3)),
        INVALID,
        "k_cache has dtype float32 and v_cache float8_e4m3",
    ),
    (
        paged,
        change(q=torch.randn(3, 5, 64), out=torch.empty(3, 5, 64)),
        INVALID,
        "q has 5 heads and k_cache has 2",
    ),
    (
        paged,
        change(
            q=torch.randn(3, 4, 72),
            out=torch.empty(3, 4, 72),
            k_cache=torch.empty(4, 16, 2, 72),
            v_cache=torch.empty(4, 16, 2, 72),
        ),
        UNSUPPORTED,
        "head_dim is 72, supported are 64, 80, 96, 128, 192 or 256",
    ),
    (
        paged,
        change(k_cache=lambda t: t[:, :12], v_cache=lambda t: t[:, :12]),
        UNSUPPORTED,
        "page.size is 12, .* a multiple of 8",
    ),
    (paged, change(q=cast(torch.bfloat16)), UNSUPPORTED, "q has dtype bfloat16, k_cache float32"),
    (paged, change(q=cast(torch.int32)), UNSUPPORTED, "q has dtype int32"),
    (
        paged,
        change(out=cast(torch.float16)),
        UNSUPPORTED,
        "out float16; supported are: with a float32 q",
    ),
    (
        paged,
        change(out=torch.empty(4, 4, 64)),
        INVALID,
        r"out is float32\[4, 4, 64\].* expected shape \[3, 4, 64\]",
    ),
    (paged, change(out=strided), INVALID, "out has stride 2"),
    (
        paged,
        change(out=torch.empty(3, 1, 64).expand(3, 4, 64)),
        INVALID,
        "out is written and its strides lay entries over each other",
    ),
    (paged, change(scale=math.nan), INVALID, "scale is nan, expected a finite number"),
    (paged, change(softcap=-1.0), INVALID, "softcap is -1.*, expected 0"),
    (paged, change(window=0), INVALID, "window is 0, expected 1 or more"),
    (paged, change(fixed_split=100), INVALID, "fixed_split is 100, expected 0 or a multiple of 64"),
    (
        paged,
        change(alibi_slopes=torch.ones(2)),
        INVALID,
        r"alibi_slopes is float32\[2\].* expected shape \[4\]",
    ),
    (
        paged,
        change(alibi_slopes=torch.ones(4).half()),
        INVALID,
        "alibi_slopes has dtype float16, expected float32",
    ),
    (paged, change(sinks=torch.ones(1)), INVALID, r"sinks is float32\[1\]"),
    (
        paged,
        change(sinks=int32([1] * 4)),
        INVALID,
        "sinks has dtype int32, expected float32 or float16 or bfloat16",
    ),
    (
        paged,
        change(q_scale=torch.ones(1)),
        INVALID,
        "q_scale is given and q is float32; it goes with a float8 q",
    ),
    (
        paged,
        change(
            q=cast(E4M3),
            k_cache=cast(E4M3),
            v_cache=cast(E4M3),
            out=cast(torch.bfloat16),
            q_scale=torch.ones(5, 4, 16),
            k_scale=torch.ones(1),
            v_scale=torch.ones(1),
        ),
        INVALID,
        r"q_scale is float32\[5, 4, 16\].*, expected ",
    ),
    (
        paged,
        change(k_scale=torch.ones(1)),
        INVALID,
        "k_scale is given and k_cache is .*float.*Leave it out",
    ),
    (
        paged,
        change(k_cache=cast(E4M3), v_cache=cast(E4M3)),
        INVALID,
        r"k_scale is not given, expected float32 \[1\] or \[2\]",
    ),
    (paged, change(out_scale=torch.ones(1)), INVALID, "out_scale is given and out is .*float"),
    (paged, change(out=cast(E4M3)), INVALID, "out_scale is not given"),
    (
        paged,
        change(page_table=cast(torch.int64)),
        INVALID,
        "page_table has dtype int64, expected int32",
    ),
    (
        paged,
        change(page_table=lambda t: t[:1]),
        INVALID,
        r"page_table is int32\[1, 3\].* expected shape \[2, any\]",
    ),
    (paged, change(kv_lens=lambda t: t[None]), INVALID, "kv_lens is .* expected shape"),
    (
        paged,
        change(cu_seqlens_q=lambda t: t[:2]),
        INVALID,
        r"cu_seqlens_q is int32\[2\].* expected shape \[3\]",
    ),
    (paged, change(plan=torch.zeros(9)), INVALID, "plan has dtype float32, expected int32"),
    (packed, change(k=lambda t: t[..., :32]), INVALID, "k is .* expected shape"),
    (
        packed,
        change(v=lambda t: t[:4]),
        INVALID,
        r"v is float32\[4, 2, 64\].* expected shape \[9, 2, 64\]",
    ),
    (packed, change(cu_seqlens_k=cumulative([9])), INVALID, "cu_seqlens_q is .* expected shape"),
    (
        packed,
        change(cu_seqlens_k=cast(torch.int64)),
        INVALID,
        "cu_seqlens_k has dtype int64, expected int32",
    ),
    (packed, change(v=cast(torch.float16)), INVALID, "k has dtype float32 and v float16"),
    (merge, change(lses=lambda t: t[:1]), INVALID, "1 lses and 2 partials are given"),
    (
        merge,
        change(partials=lambda t: [t[0], t[1][:2]]),
        INVALID,
        r"partials\[1\] is .* expected shape \[3, 4, 64\]",
    ),
    (
        merge,
        change(partials=lambda t: [t[0], t[1].half()]),
        INVALID,
        r"partials\[1\] has dtype float16, expected float32",
    ),
    (merge, change(lses=lambda t: [t[0], t[1].double()]), INVALID, r"lses\[1\] has .*dtype"),
    (merge, change(out=cast(torch.float16)), INVALID, "out has dtype float16, expected float32"),
    (
        store,
        change(v=lambda t: t[:2]),
        INVALID,
        r"v is float32\[2, 2, 64\].* expected shape \[3, 2, 64\]",
    ),
    (store, change(v=cast(torch.float16)), INVALID, "v has dtype float16, expected float32"),
    (store, change(k=cast(E4M3), v=cast(E4M3)), INVALID, "k has dtype float8_e4m3, expected"),
    (store, change(k_cache=cast(torch.float16)), INVALID, "k_cache has dtype float16, expected"),
    (store, change(k_cache=cast(E5M2)), INVALID, "v_cache has dtype float32, expected"),
    (store, change(k_cache=lambda t: t[:, :, :1]), INVALID, "k_cache is .* expected shape"),
    (
        store,
        change(slot_mapping=cast(torch.float32)),
        INVALID,
        "slot_mapping has dtype float32, expected int32 or int64",
    ),
    (
        store,
        change(slot_mapping=torch.arange(4)),
        INVALID,
        "slot_mapping has 4 entries, expected at most k's 3 tokens",
    ),
    (store, change(k_cache=cast(E4M3), v_cache=cast(E4M3)), INVALID, "k_scale is not given"),
    (store, change(v_scale=torch.ones(1)), INVALID, "v_scale is given and .* would not be used"),
    (
        store,
        change(k_cache=lambda t: t[:1].expand(3, -1, -1, -1)),
        INVALID,
        "k_cache is written and (has stride 0|its strides lay entries over each other)",
    ),
    (rope, change(cos_sin=torch.randn(50, 63)), INVALID, "rotary_dim 63, expected an even number"),
    (rope, change(cos_sin=torch.randn(50, 66)), INVALID, "rotary_dim 66, over q's head_dim 64"),
    (rope, change(style="gptj"), INVALID, "style is 'gptj', expected 'neox' or 'interleaved'"),
    (rope, change(norm_policy="both"), INVALID, "norm_policy is 'both', expected 'none' or"),
    (
        rope,
        change(norm_scope="layer"),
        INVALID,
        "norm_scope is 'layer', expected 'head' or 'token'",
    ),
    (
        rope,
        change(norm_eps=1e-6),
        INVALID,
        "norm_eps is .* and norm_policy is none|norm_eps is given",
    ),
    (rope, change(norm_policy="norm_then_rope"), INVALID, "norm_eps is not given"),
    (rope, change(**NORM), INVALID, "q_norm_weight is not given"),
    (
        rope,
        change(**NORM, q_norm_weight=torch.ones(3)),
        INVALID,
        r"q_norm_weight is .* expected shape \[64\]",
    ),
    (
        rope,
        change(k_norm_weight=torch.ones(64)),
        INVALID,
        "k_norm_weight is given and norm_policy is none",
    ),
    (rope, change(positions=torch.arange(2)), INVALID, r"positions is .* expected shape \[3\]"),
    (rope, change(mrope_section=[1, 2]), INVALID, "mrope_section has 2 entries, expected 3"),
    (rope, change(mrope_section=[8, 8, 8]), INVALID, "mrope_section sums to 24, expected 32"),
    (
        rope,
        change(positions=None),
        INVALID,
        "cu_seqlens_q is not given, needed where positions are not",
    ),
    (
        rope,
        change(slot_mapping=None),
        INVALID,
        "cu_seqlens_q is not given, needed where slot_mapping is not",
    ),
    (rope, change(v_cache=None), INVALID, "k_cache is given alone"),
    (rope, change(q_scale=torch.ones(1)), INVALID, "q_scale is given and out_q is float32"),
    (rope, change(cleared=torch.ones(2)), INVALID, "cleared has dtype float32, expected int32"),
    (
        rope,
        change(cleared=int32([[1, 2], [3, 4]]).t()),
        INVALID,
        "cleared .*gaps between its entries, expected a contiguous tensor",
    ),
    (rope, change(out_q=cast(torch.float16)), INVALID, "out_q has dtype float16, expected float32"),
    (
        rope,
        change(out_k=torch.empty(3, 2, 32)),
        INVALID,
        r"out_k is .* expected shape \[3, 2, 64\]",
    ),
    (rope, change(upper_max=0.0), INVALID, "upper_max is 0.*, expected above 0"),
    (
        rope,
        change(q=torch.randn(3, 3, 64), out_q=torch.empty(3, 3, 64)),
        INVALID,
        "q has 3 heads and k .*2",
    ),
    (
        plan,
        change(kv_lens=int32([3])),
        INVALID,
        r"cu_seqlens_q is int32\[3\].* expected shape \[2\]",
    ),
    (plan, change(kv_lens=cast(torch.int64)), INVALID, "kv_lens has dtype int64, expected int32"),
    (plan, change(plan=torch.zeros(2000)), INVALID, "plan has dtype float32, expected int32"),
]

BY_VALUE = [
    (
        paged,
        change(kv_lens=int32([49, 9])),
        r"kv_lens\[0\] is 49, page_table holds 3 pages of 16 = 48",
    ),
    (paged, change(kv_lens=int32([-1, 9])), r"kv_lens\[0\] is -1"),
    (paged, change(cu_seqlens_q=int32([1, 2, 3])), r"cu_seqlens_q\[0\] is 1, expected 0"),
    (
        paged,
        change(cu_seqlens_q=int32([0, 2, 1])),
        r"cu_seqlens_q\[2\] is 1, below the 2 before it",
    ),
    (
        paged,
        change(cu_seqlens_q=int32([0, 2, 4])),
        "cu_seqlens_q ends at 4, over the 3 of tokens in q",
    ),
    (
        paged,
        change(page_table=lambda t: t.clone().fill_(99)),
        r"page_table\[0, 0\] is 99, expected a page id below 5",
    ),
    (paged, change(page_table=lambda t: t.clone().fill_(-2)), r"page_table\[0, 0\] is -2"),
    (paged, change(alibi_slopes=torch.full((4,), math.nan)), r"alibi_slopes\[0\] is nan"),
    (paged, change(sinks=torch.full((4,), math.inf)), r"sinks\[0\] is inf"),
    (
        packed,
        change(cu_seqlens_k=int32([0, 4, 10])),
        "cu_seqlens_k ends at 10, over the 9 of tokens in k",
    ),
    (
        store,
        change(slot_mapping=torch.tensor([0, 24])),
        r"slot_mapping\[1\] is 24, expected -1 or 0 to 23",
    ),
    (store, change(slot_mapping=torch.tensor([-2])), r"slot_mapping\[0\] is -2"),
    (
        store,
        change(
            k_cache=cast(E4M3),
            v_cache=cast(E4M3),
            k_scale=torch.tensor([0.0]),
            v_scale=torch.ones(1),
        ),
        r"k_scale\[0\] is 0, expected a finite scale above 0",
    ),
    (
        rope,
        change(positions=torch.tensor([0, 1, 50])),
        "positions gives token 2 position 50, .*below cos_sin.s 50 rows",
    ),
    (rope, change(positions=torch.tensor([-1, 1, 2])), "positions gives token 0 position -1"),
    (plan, change(plan=torch.zeros(20, dtype=torch.int32)), "plan has 20 words"),
    (plan, change(fixed_split=100), "fixed_split is 100"),
    (plan, change(kv_lens=int32([-5, 2])), r"kv_lens\[0\] is -5"),
    (paged, change(plan=torch.zeros(500, dtype=torch.int32)), "plan: "),
]

WRITTEN = ("out", "out_q", "k_cache", "v_cache", "plan")


def names(cases: list[Any]) -> list[str]:
    return [f"{case[0].__name__}-{i}" for i, case in enumerate(cases)]


def refused(
    build: Callable[[], Arguments], wrong: Callable[[Arguments], None], error: Any, text: str
) -> None:
    """The call raises, names its operator, and leaves all that it would write as it was."""
    arguments = build()
    wrong(arguments)
    before = {
        name: arguments[name].contiguous().view(torch.uint8).clone()
        for name in WRITTEN
        if isinstance(arguments.get(name), torch.Tensor)
    }
    with pytest.raises(error, match=text) as caught:
        CALLS[build](**arguments)
    assert type(caught.value) is error
    assert not str(caught.value).startswith(("not supported", "invalid"))
    for name, old in before.items():
        assert torch.equal(arguments[name].contiguous().view(torch.uint8), old), (
            f"{name} was written"
        )


def faked(mode: FakeTensorMode, arguments: Arguments) -> Arguments:
    return tree_map(lambda x: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x, arguments)


@pytest.mark.parametrize(("build", "wrong", "error", "text"), BY_SHAPE, ids=names(BY_SHAPE))
def test_wrong_by_shape(build: Any, wrong: Any, error: Any, text: str) -> None:
    refused(build, wrong, error, text)


@pytest.mark.parametrize(("build", "wrong", "error", "text"), BY_SHAPE, ids=names(BY_SHAPE))
def test_wrong_by_shape_in_a_trace(build: Any, wrong: Any, error: Any, text: str) -> None:
    arguments = build()
    wrong(arguments)
    with FakeTensorMode() as mode:
        fake = faked(mode, arguments)
        with pytest.raises(error, match=text):
            CALLS[build](**fake)


@pytest.mark.parametrize(("build", "wrong", "text"), BY_VALUE, ids=names(BY_VALUE))
def test_wrong_by_value(build: Any, wrong: Any, text: str) -> None:
    refused(build, wrong, INVALID, text)


@pytest.mark.parametrize("build", CALLS, ids=lambda build: build.__name__)
def test_the_calls_are_right_but_for_the_mistake(build: Any) -> None:
    CALLS[build](**build())
    arguments = build()
    with FakeTensorMode() as mode:
        CALLS[build](**faked(mode, arguments))


def test_two_ways_to_say_the_dtype() -> None:
    with pytest.raises(ValueError, match="Give one of the two"):
        hpcattn.paged_attention(**paged(), out_dtype=torch.float16)
    with pytest.raises(ValueError, match="Give one of the two"):
        hpcattn.rope_norm_store_kv(**rope(), out_q_dtype=E4M3)


def test_no_partials() -> None:
    with pytest.raises(ValueError, match="partials is empty"):
        hpcattn.merge_partials([], [])


def test_group_of_wrong_ranks() -> None:
    with pytest.raises(ValueError, match="q has rank 2 and k rank 4"):
        hpcattn.AttentionGroup.of(torch.empty(2, 64), torch.empty(1, 8, 1, 64))


def test_a_tensor_that_is_no_plan() -> None:
    with pytest.raises(ValueError, match="plan: "):
        hpcattn.plan_summary(torch.zeros(100, dtype=torch.int32))


def test_a_dtype_that_no_operator_takes() -> None:
    with pytest.raises(ValueError, match="q has torch's dtype Double, which no operator takes"):
        hpcattn.paged_attention(**{**paged(), "q": torch.randn(3, 4, 64, dtype=torch.float64)})


def test_a_sparse_tensor() -> None:
    with pytest.raises(ValueError, match="k_cache has no strides"):
        hpcattn.paged_attention(**{**paged(), "k_cache": torch.zeros(5, 16, 2, 64).to_sparse()})
