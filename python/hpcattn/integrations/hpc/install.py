# SPDX-License-Identifier: Apache-2.0
"""The name `hpc`: for one process (`register`), or in a folder of packages (`install`).

The wheel brings no package `hpc`, since another library may own that name. What owns it is never
overwritten: every way says so and stops.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

NAME = "hpc"
# Lies in an installed package and lists what was written; its presence says whose it is.
MARKER = "hpcattn_dropin.json"
DROPIN = Path(__file__).parents[2] / "dropin"


class InstallError(RuntimeError):
    """The name can not be taken, or given back."""


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _marker_of(folder: Path) -> dict[str, str] | None:
    """Files that we wrote to a package, with their hashes; None where it is not ours."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        return {str(name): str(value) for name, value in marker["files"].items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None


def _is_ours(folder: Path) -> bool:
    return folder == DROPIN / NAME or _marker_of(folder) is not None


def _owner(folder: Path) -> str:
    """Who owns a package, for a message."""
    try:
        owners = importlib.metadata.packages_distributions().get(NAME, [])
    except Exception:  # metadata of other packages, which may be broken in any way
        owners = []
    return f"{folder} (of {', '.join(sorted(set(owners)))})" if owners else str(folder)


def _folder_of(spec: importlib.machinery.ModuleSpec | None) -> Path | None:
    """Where a package or module lies; None for neither, and for a bare folder of that name."""
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin)
    return origin if spec.submodule_search_locations is None else origin.parent


def _found() -> Path | None:
    """Where `import hpc` would lead to."""
    loaded = sys.modules.get(NAME)
    if loaded is not None:
        spec = getattr(loaded, "__spec__", None)
        origin = getattr(loaded, "__file__", None)
        return _folder_of(spec) or (Path(origin).parent if origin else Path(repr(loaded)))
    return _folder_of(importlib.util.find_spec(NAME))


def register(shadow: bool = False) -> ModuleType:
    """Makes `import hpc` give the drop-in, in this process, with nothing written anywhere.

    Args:
        shadow: Take the name in this process even where another package has it. Modules that have
            imported that package already keep it.

    Returns:
        The module `hpc`.

    Raises:
        ImportError: Another package has the name, and `shadow` was not asked for.
    """
    folder = _found()
    if folder is not None and not _is_ours(folder) and not shadow:
        raise ImportError(
            f"hpcattn: 'hpc' is another package here, {_owner(folder)}, and is left as it is. "
            "Remove it, or call register(shadow=True) to pass over it in this process."
        )
    loaded = sys.modules.get(NAME)
    if loaded is not None and folder is not None and _is_ours(folder):
        return loaded
    spec = importlib.util.spec_from_file_location(
        NAME, DROPIN / NAME / "__init__.py", submodule_search_locations=[str(DROPIN / NAME)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"hpcattn: {DROPIN / NAME} is missing. Install hpcattn anew.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if loaded is None:
            del sys.modules[NAME]
        else:
            sys.modules[NAME] = loaded
        raise
    return module


def _target(target: Path | None) -> Path:
    folder = Path(sysconfig.get_paths()["purelib"]) if target is None else Path(target)
    if not folder.is_dir():
        raise InstallError(f"{folder} is no folder. Name an existing one by --target.")
    return folder.resolve()


def _refuse_foreign(folder: Path) -> None:
    """Stops where a package or a module of another's stands in the way."""
    for path in (folder, folder.with_suffix(".py")):
        if (path.exists() or path.is_symlink()) and not (path == folder and _is_ours(folder)):
            raise InstallError(
                f"'hpc' is another package here, {_owner(path)}, and is left as it is. Remove it "
                "first, or use another Python environment."
            )


def install(target: Path | None = None) -> str:
    """Writes the package `hpc`, or brings one of ours up to date.

    Args:
        target: Folder to write it to; None: this Python's site-packages.

    Returns:
        What was done.

    Raises:
        InstallError: Another package has the name there, or elsewhere on this Python's path.
        OSError: The folder can not be written.
    """
    parent = _target(target)
    folder = parent / NAME
    _refuse_foreign(folder)
    if target is None:
        found = _found()
        if found is not None and not _is_ours(found):
            raise InstallError(
                f"'hpc' is another package on this Python's path, {_owner(found)}, and is left as "
                "it is. Remove it first, or use another Python environment."
            )
    known = _marker_of(folder)
    if known is not None:
        _refuse_changed(folder, known)
    sources = sorted(p for p in (DROPIN / NAME).iterdir() if p.is_file())
    fresh = Path(tempfile.mkdtemp(prefix=".hpcattn-", dir=parent))
    try:
        for source in sources:
            shutil.copyfile(source, fresh / source.name)
        files = {source.name: _hash(fresh / source.name) for source in sources}
        text = json.dumps({"by": "hpcattn", "files": files}, indent=2) + "\n"
        (fresh / MARKER).write_text(text, encoding="utf-8")
        fresh.chmod(0o755)
        if folder.exists():
            # The marker goes last: until then the old one says whose the package is.
            for name in [*files, MARKER]:
                os.replace(fresh / name, folder / name)
            done = "brought up to date"
        else:
            os.rename(fresh, folder)
            done = "installed"
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    importlib.invalidate_caches()
    return f"{done}: {folder}"


def _refuse_changed(folder: Path, files: Mapping[str, str]) -> None:
    """Stops where a file that we wrote is another's now."""
    for name, value in files.items():
        path = folder / name
        if path.exists() and _hash(path) != value:
            raise InstallError(
                f"{path} is not as hpcattn wrote it (another package may have been installed over "
                "it), so nothing was changed. Remove what owns it, or the folder, by hand."
            )


def uninstall(target: Path | None = None) -> str:
    """Removes what `install` wrote, and nothing else.

    Args:
        target: As for `install`.

    Returns:
        What was done.

    Raises:
        InstallError: The package there is not ours, or was changed since.
        OSError: The folder can not be written.
    """
    folder = _target(target) / NAME
    if not folder.exists():
        return f"nothing to remove: there is no {folder}"
    files = _marker_of(folder)
    if files is None:
        raise InstallError(
            f"'hpc' is another package here, {_owner(folder)}, and is left as it is."
        )
    _refuse_changed(folder, files)
    for name in files:
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    (folder / MARKER).unlink()
    left = sorted(path.name for path in folder.iterdir())
    importlib.invalidate_caches()
    if left:
        return f"removed ours from {folder}; others' files stay: {', '.join(left)}"
    folder.rmdir()
    return f"removed: {folder}"


def status(target: Path | None = None) -> str:
    """What the name `hpc` is.

    Args:
        target: A folder to look in; None: this Python's path.
    """
    if target is None:
        folder = _found()
        where = "on this Python's path"
    else:
        parent = _target(target)
        there = [p for p in (parent / NAME, parent / f"{NAME}.py") if p.exists()]
        folder = there[0] if there else None
        where = f"in {parent}"
    if folder is None:
        return f"no package 'hpc' {where}"
    if not _is_ours(folder):
        return f"'hpc' is another package: {_owner(folder)}"
    files = _marker_of(folder) or {}
    changed = [n for n, value in files.items() if not _same(folder / n, value)]
    state = f", changed since: {', '.join(changed)}" if changed else ""
    return f"'hpc' is hpcattn's drop-in: {folder}{state}"


def _same(path: Path, value: str) -> bool:
    return path.is_file() and _hash(path) == value


ACTIONS: Mapping[str, Callable[[Path | None], str]] = {
    "install": install,
    "uninstall": uninstall,
    "status": status,
}
