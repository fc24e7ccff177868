# SPDX-License-Identifier: Apache-2.0
"""Which versions of vLLM are served, what is registered, and what differs between versions."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pytest
import vllm
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

import hpcattn.integrations.vllm as plugin
from hpcattn.integrations.vllm import _versions
from hpcattn.integrations.vllm.backend import HpcattnBackend, HpcattnCpuBackend

CUSTOM, CPU_ATTN = AttentionBackendEnum.CUSTOM, AttentionBackendEnum.CPU_ATTN


class _Logger:
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def warning(self, text: str, *values: Any) -> None:
        self.lines.append(text % values)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The plugin's log; the registry is clean before and after, and no option is set."""
    logger = _Logger()
    monkeypatch.setattr(_versions, "logger", lambda: logger)
    monkeypatch.delenv(plugin.ENVIRONMENT, raising=False)
    _versions.warn_once.cache_clear()
    CUSTOM.clear_override()
    CPU_ATTN.clear_override()
    yield logger.lines
    CUSTOM.clear_override()
    CPU_ATTN.clear_override()
    _versions.warn_once.cache_clear()


def test_vllm_finds_the_plugin() -> None:
    (found,) = metadata.entry_points(group="vllm.general_plugins", name="hpcattn")
    assert found.load() is plugin.register


def test_custom_is_registered_and_nothing_else(log: list[str]) -> None:
    plugin.register()
    plugin.register()
    assert CUSTOM.get_class() is HpcattnBackend
    assert not CPU_ATTN.is_overridden()
    assert AttentionBackendEnum[HpcattnBackend.get_name()] is CUSTOM
    assert log == []


def test_cpu_attn_is_taken_over_where_that_is_asked(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(plugin.ENVIRONMENT, "cpu")
    plugin.register()
    assert CPU_ATTN.get_class() is HpcattnCpuBackend
    assert AttentionBackendEnum[HpcattnCpuBackend.get_name()] is CPU_ATTN


def test_off_registers_nothing(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugin.ENVIRONMENT, "off")
    plugin.register()
    assert not CUSTOM.is_overridden()


def test_another_plugins_custom_stays(log: list[str]) -> None:
    register_backend(CUSTOM, "some.other.Backend")
    plugin.register()
    assert CUSTOM.get_path() == "some.other.Backend"
    assert "CUSTOM is some.other.Backend already" in log[0]


def test_an_unknown_option_is_refused(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugin.ENVIRONMENT, "cpu, gpu")
    with pytest.raises(ValueError, match="is 'cpu, gpu': 'gpu' is no option, expected of 'off'"):
        plugin.register()


@pytest.mark.parametrize("version", ["0.26.0", "0.26.1+cu130", "0.30.2", "0.32.0", "0.33.0rc1"])
def test_known_versions(version: str) -> None:
    assert _versions.refusal(version) is None


@pytest.mark.parametrize("version", ["0.25.9", "0.34.0", "1.0.0", "0.2", "dev", ""])
def test_an_unknown_version_says_so_once_and_registers_nothing(
    version: str, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm, "__version__", version)
    monkeypatch.setenv(plugin.ENVIRONMENT, "cpu")
    plugin.register()
    plugin.register()
    assert not CUSTOM.is_overridden()
    assert not CPU_ATTN.is_overridden()
    (line,) = log
    assert f"vLLM is {version}, expected 0.26 to 0.33" in line


def test_which_way_a_version_asks_for_layouts() -> None:
    assert [_versions.lists_layouts(f"0.{minor}.0") for minor in (26, 28, 29, 33)] == [
        False,
        False,
        True,
        True,
    ]


def test_all_layouts_are_taken_tokens_outside_of_heads_first() -> None:
    layouts_of_vllm = pytest.importorskip("vllm.v1.kv_cache_layout").KVCacheLayout
    layouts = _versions.ListOfLayouts.supported_kv_cache_layouts()
    assert layouts[0] is layouts_of_vllm.LBNHC
    assert sorted(layout.name for layout in layouts) == sorted(layouts_of_vllm.__members__)


def test_shape_and_memory_order_of_older_versions() -> None:
    assert _versions.ShapeOfCache.get_kv_cache_shape(9, 16, 2, 64) == (9, 2, 16, 128)
    assert _versions.ShapeOfCache.get_required_kv_cache_layout() is None
    # [blocks, heads, tokens, content], with layers before them; blocks always outermost.
    assert _versions.stride_order("NHD", False) == (0, 2, 1, 3)
    assert _versions.stride_order("HND", False) == (0, 1, 2, 3)
    assert _versions.stride_order("NHD", True) == (1, 0, 3, 2, 4)
    assert _versions.stride_order("HND", True) == (1, 2, 0, 3, 4)
    with pytest.raises(ValueError, match="layout is 'DNH', expected 'NHD' or 'HND'"):
        _versions.stride_order("DNH", False)
