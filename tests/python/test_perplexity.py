# SPDX-License-Identifier: Apache-2.0
"""Perplexity with K and V stored in a dtype: equal to a forward pass where nothing is lost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tiny_models
from cli_support import run
from hpcattn import models
from hpcattn.perplexity import perplexity

TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps for an hour or two. " * 2


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with tiny_models.one_thread():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save_folder(tmp_path_factory.mktemp("model"))


def test_equals_eager_and_float8_shows(folder: Path) -> None:
    model = models.load(str(folder))
    ids = model.tokenizer(TEXT, return_tensors="pt").input_ids
    with tiny_models.attention(model.model, "eager"):
        logits = model.model(ids).logits[0]
    expected = math.exp(torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:]).item())
    before = model.model.config._attn_implementation
    for chunk in (7, 64, 1000):
        assert perplexity(model, TEXT, chunk=chunk) == pytest.approx(expected, rel=1e-5)
    rounded = perplexity(model, TEXT, kv_cache_dtype=torch.float8_e4m3fn)
    assert 1e-4 < abs(rounded / expected - 1) < 0.1
    assert model.model.config._attn_implementation == before


def test_command(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_text(TEXT)
    answer = run("perplexity", "--model", str(folder), "--text", str(file), "--json").json
    assert [row["kv_cache"] for row in answer["rows"]] == ["float32", "fp8_e4m3", "fp8_e5m2"]
    assert answer["rows"][0]["change"] == 0
    shown = run("perplexity", "--model", str(folder), "--text", str(file))
    assert "fp8_e5m2" in shown.out
    file.write_text("")
    outcome = run("perplexity", "--model", str(folder), "--text", str(file))
    assert outcome.code == 2
    assert "expected 2 or more" in outcome.err
