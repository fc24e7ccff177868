# SPDX-License-Identifier: Apache-2.0
"""What torch asks of an operator: opcheck, devices, autograd, and the cost of a call."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import hpcattn
from batches import make_batch
from calls import CALLS, packed, paged, rope, store

OPS = torch.ops.hpcattn


def test_opcheck_of_attention() -> None:
    batch = make_batch(lengths=[(2, 20), (1, 9)], padding=1)
    batch.q[3:] = 0  # opcheck compares runs, and NaN is not equal to itself
    out, lse = torch.empty_like(batch.q), torch.empty(4, 4)
    group = hpcattn.AttentionGroup.of(batch.q, batch.k_cache, window=9)
    plan = hpcattn.plan_attention(group, batch.cu_seqlens_q, batch.kv_lens)
    lengths = (batch.page_table, batch.cu_seqlens_q, batch.kv_lens)
    caches = (batch.k_cache.nan_to_num(), batch.v_cache.nan_to_num())
    options: dict[str, Any] = {
        "scale": 0.125,
        "window": 9,
        "softcap": 2.0,
        "alibi_slopes": torch.rand(4),
        "sinks": torch.rand(4),
        "plan": plan,
    }
    op = OPS.paged_attention.default
    torch.library.opcheck(op, (batch.q, *caches, *lengths, out, lse), options)
    torch.library.opcheck(op, (batch.q, *caches, *lengths, out, None), {"scale": 0.1})
    p = packed()
    arguments = (p["q"], p["k"], p["v"], p["cu_seqlens_q"], p["cu_seqlens_k"], p["out"], None)
    torch.library.opcheck(OPS.packed_attention.default, arguments, {"scale": 0.1, "causal": False})


def test_opcheck_of_merge() -> None:
    partials, lses = (
        [torch.randn(3, 2, 64) for _ in range(2)],
        [torch.randn(3, 2) for _ in range(2)],
    )
    out, lse = torch.empty(3, 2, 64), torch.empty(3, 2)
    torch.library.opcheck(OPS.merge_partials.default, (partials, lses, out, lse))


def test_opcheck_of_stores() -> None:
    s = store()
    caches = (s["k_cache"].zero_(), s["v_cache"].zero_())
    torch.library.opcheck(OPS.store_kv.default, (s["k"], s["v"], *caches, s["slot_mapping"]))
    out_q = torch.empty(3, 4, 64)
    q, k, v, table = torch.randn(3, 4, 64), s["k"], s["v"], torch.randn(50, 64)
    keywords: dict[str, Any] = {
        "positions": torch.arange(3),
        "slot_mapping": s["slot_mapping"],
        "norm_policy": "norm_then_rope",
        "q_norm_weight": torch.rand(64),
        "k_norm_weight": torch.rand(64),
        "norm_eps": 1e-6,
    }
    op = OPS.rope_norm_store_kv.default
    torch.library.opcheck(op, (q, k, v, table, out_q, None, None, None, *caches), keywords)
    # Without float8, which opcheck's own arithmetic has not.
    out_k, out_v = torch.empty(3, 2, 64), torch.empty(3, 2, 64)
    arguments = (q, k, v, table, out_q, None, out_k, out_v)
    torch.library.opcheck(op, arguments, {"positions": torch.arange(3)})


def test_opcheck_of_the_plan() -> None:
    group = {
        "num_q_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 64,
        "page_size": 16,
        "q_dtype": torch.float32,
        "kv_dtype": torch.float32,
    }
    lengths = (torch.tensor([0, 2, 3], dtype=torch.int32), torch.tensor([20, 9], dtype=torch.int32))
    plan = torch.zeros(OPS.plan_words(2, 3, 0, **group), dtype=torch.int32)
    torch.library.opcheck(OPS.make_plan.default, (*lengths, plan), group)
    OPS.make_plan(*lengths, plan, **group)
    torch.library.opcheck(OPS.plan_summary.default, (plan,), test_utils="test_schema")


SCHEMAS = {
    "paged_attention": {"out", "lse"},
    "packed_attention": {"out", "lse"},
    "merge_partials": {"out", "lse"},
    "store_kv": {"k_cache", "v_cache"},
    "rope_norm_store_kv": {
        "out_q",
        "out_q_scale",
        "out_k",
        "out_v",
        "k_cache",
        "v_cache",
        "cleared",
    },
    "make_plan": {"plan"},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_only_what_is_written_is_marked_so(name: str) -> None:
    schema = getattr(OPS, name).default._schema
    written = {
        argument.name
        for argument in schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    assert written == SCHEMAS[name]
    assert not schema.returns


TENSORS = {
    paged: ["q", "k_cache", "page_table", "cu_seqlens_q", "kv_lens", "out"],
    packed: ["q", "v", "cu_seqlens_k"],
    store: ["k", "v_cache", "slot_mapping"],
    rope: ["q", "v", "cos_sin", "positions", "k_cache", "out_q"],
}
ONE_TENSOR = [(build, name) for build, tensors in TENSORS.items() for name in tensors]


@pytest.mark.parametrize(
    ("build", "name"), ONE_TENSOR, ids=lambda value: getattr(value, "__name__", value)
)
def test_one_tensor_on_another_device(build: Any, name: str) -> None:
    arguments = build()
    arguments[name] = arguments[name].to("meta")
    with pytest.raises(ValueError, match=r" is on (cpu|meta), expected (cpu|meta) \(where"):
        CALLS[build](**arguments)


def test_the_native_check_of_devices() -> None:
    """Without the fake implementations, which answer for the meta device in Python."""
    p = paged()
    names = ("q", "k_cache", "v_cache", "page_table", "cu_seqlens_q", "kv_lens", "out")
    arguments = [p[name] for name in names]
    arguments[1] = arguments[1].to("meta")
    with pytest.raises(RuntimeError, match=r"invalid argument: .*k_cache is on meta, expected cpu"):
        OPS.paged_attention.default.redispatch(
            torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *arguments, None, scale=0.1
        )


@pytest.mark.parametrize("build", CALLS, ids=lambda build: build.__name__)
def test_all_on_meta_gives_shapes_alone(build: Any) -> None:
    arguments = torch.utils._pytree.tree_map(
        lambda x: x.to("meta") if isinstance(x, torch.Tensor) else x, build()
    )
    result = CALLS[build](**arguments)
    first = result[0] if isinstance(result, tuple) else result
    assert first is None or first.device.type == "meta"


def fake_cuda(arguments: Any) -> Any:
    """The same on a GPU, without data: for a FakeTensorMode."""

    def moved(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        dtype = torch.bfloat16 if x.dtype == torch.float32 else x.dtype
        return torch.empty_strided(x.size(), x.stride(), dtype=dtype, device="cuda:1")

    return torch.utils._pytree.tree_map(moved, arguments)


@pytest.mark.parametrize("build", [paged, packed, store, rope], ids=lambda build: build.__name__)
def test_a_trace_of_a_gpu_needs_none(build: Any) -> None:
    arguments = build()
    arguments.pop("out", None)
    with FakeTensorMode():
        result = CALLS[build](**fake_cuda(arguments))
    first = result[0] if isinstance(result, tuple) else result
    if first is not None:
        assert first.device == torch.device("cuda:1")
        assert first.shape == arguments["q"].shape


def test_a_plan_is_made_within_a_trace_of_a_gpu() -> None:
    group = hpcattn.AttentionGroup(4, 2, 64, 16, torch.bfloat16, torch.bfloat16)
    with FakeTensorMode():
        ends, lens, plan = (torch.empty(n, dtype=torch.int32, device="cuda") for n in (3, 2, 1000))
        assert hpcattn.plan_attention(group, ends, lens, plan=plan) is plan


def test_float32_attention_is_refused_in_a_trace_of_a_gpu() -> None:
    arguments = paged()
    with FakeTensorMode():
        fake = fake_cuda(arguments)
        for name in ("q", "k_cache", "v_cache", "out"):
            fake[name] = fake[name].float()
        with pytest.raises(NotImplementedError, match="q has dtype float32 on a GPU, expected"):
            hpcattn.paged_attention(**fake)


FLOATS = [
    (paged, "q"),
    (paged, "v_cache"),
    (packed, "k"),
    (store, "k"),
    (rope, "q"),
    (rope, "cos_sin"),
]


@pytest.mark.parametrize(
    ("build", "name"), FLOATS, ids=lambda value: getattr(value, "__name__", value)
)
@pytest.mark.parametrize("leaf", [True, False])
def test_autograd_is_refused(build: Any, name: str, leaf: bool) -> None:
    arguments = build()
    leaf_tensor = arguments[name].clone().requires_grad_()
    with torch.enable_grad():
        arguments[name] = leaf_tensor if leaf else leaf_tensor * 1.0
        with pytest.raises(NotImplementedError, match=f"{name} requires grad, and no gradient is"):
            CALLS[build](**arguments)
        with torch.no_grad():
            CALLS[build](**arguments)
        arguments[name] = arguments[name].detach()
        CALLS[build](**arguments)


def test_autograd_is_refused_below_python_too() -> None:
    s = store()
    arguments = [s[name] for name in ("k", "v", "k_cache", "v_cache", "slot_mapping")]
    with torch.enable_grad():
        arguments[0] = arguments[0].requires_grad_()
        with pytest.raises(RuntimeError, match="k requires grad, and no gradient is computed here"):
            OPS.store_kv(*arguments)
    with torch.inference_mode():
        OPS.store_kv(*arguments)


def test_host_cost_of_a_call(capsys: pytest.CaptureFixture[str]) -> None:
    """What a call costs besides its computation: a batch without tokens. Printed, not judged."""
    batch = make_batch(lengths=[(0, 0)])
    tensors, arguments = batch.paged()
    out = torch.empty_like(batch.q)
    direct = (*tensors, *arguments.values(), out, None)
    calls = {
        "torch.ops.hpcattn.paged_attention": lambda: OPS.paged_attention(*direct, scale=0.1),
        "hpcattn.paged_attention": lambda: hpcattn.paged_attention(
            *tensors, **arguments, scale=0.1, out=out
        ),
    }
    for name, call in calls.items():
        times = []
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(200):
                call()
            times.append((time.perf_counter() - start) / 200 * 1e6)
        with capsys.disabled():
            figures = f"{min(times):.1f} us a call, median {sorted(times)[10]:.1f}"
            print(f"\n  {name} without tokens: {figures} (20 runs of 200)")
    assert out.shape == (0, 4, 64)
