# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import weakref

import pytest
import torch

from hpcattn.integrations.vllm import kv_views
from layers import ORDERS, PAGE_SIZE, make_cache, make_impl


@pytest.mark.parametrize("order", ORDERS)
def test_k_and_v_are_views_of_each_layout(order: str) -> None:
    cache = make_cache(make_impl(), 3, order)
    k, v = kv_views.split(cache, 64, torch.float32)
    assert k.shape == v.shape == (3, PAGE_SIZE, 2, 64)
    k[2, 5, 1] = 1.0
    v[2, 5, 1] = 2.0
    assert cache[2, 1, 5].tolist() == [1.0] * 64 + [2.0] * 64
    assert int(cache.isnan().sum()) == cache.numel() - 128, "nothing else was written"
    assert v.data_ptr() - k.data_ptr() == 64 * cache.element_size()


@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_bytes_stand_for_float8(stored: torch.dtype) -> None:
    k, v = kv_views.split(torch.zeros(2, 2, 16, 128, dtype=torch.uint8), 64, stored)
    assert k.dtype == v.dtype == stored


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        (torch.zeros(2, 2, 16, 192), r"shape \[2, 2, 16, 192\], expected .* 128\]"),
        (torch.zeros(2, 2, 2, 16, 64), r"shape \[2, 2, 2, 16, 64\], expected"),
        (torch.zeros(2, 2, 16, 128).half(), "dtype torch.float16, expected torch.float32"),
        (torch.zeros(2, 2, 16, 128, dtype=torch.uint8), "torch.uint8, expected torch.float32"),
    ],
)
def test_another_cache_is_refused(cache: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kv_views.split(cache, 64, torch.float32)


def test_q_k_and_v_are_views_of_a_projection() -> None:
    qkv = torch.arange(2 * 12 * 64).float().view(2, 12 * 64)
    q, k, v = kv_views.split_qkv(qkv, 8, 2, 64)
    assert q.shape == (2, 8, 64)
    assert k.shape == v.shape == (2, 2, 64)
    assert torch.cat([q, k, v], dim=1).view(2, -1).equal(qkv)
    assert q.data_ptr() == qkv.data_ptr()


def test_a_cache_is_split_once_and_not_kept_alive() -> None:
    pages = kv_views.PageViews(64, torch.float32)
    cache = make_cache(make_impl(), 3)
    k, _ = pages.of(cache)
    assert pages.of(cache)[0] is k
    other = make_cache(make_impl(), 4)
    assert pages.of(other)[0].shape[0] == 4
    storage = weakref.ref(other.untyped_storage())
    del other
    gc.collect()
    assert storage() is None
