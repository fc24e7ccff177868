# SPDX-License-Identifier: Apache-2.0
"""The name `hpc`: taken for a process or in a folder, given back, never from another package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hpcattn.integrations.hpc as hpc
from cli_support import run
from hpcattn.integrations.hpc import install
from hpcattn.integrations.hpc.__main__ import main

FOREIGN = "name = 'foreign'\n"


def python(code: str, *paths: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, with folders before everything else on its path."""
    env = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=180,
        env=env,
        check=False,
        cwd=Path(__file__).parent,
    )


def output_of(code: str, *paths: Path, **variables: str) -> str:
    done = python(code, *paths, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def foreign_package(folder: Path) -> Path:
    (folder / "hpc").mkdir()
    (folder / "hpc" / "__init__.py").write_text(FOREIGN)
    return folder / "hpc"


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


CHECK = """
import importlib.util, inspect
spec = importlib.util.find_spec("hpc")
assert spec is not None and spec.name == "hpc", spec
import hpc
assert "task_map" in inspect.signature(hpc.attention_decode_bf16).parameters
assert hpc.QuantType(1) == 1 and hpc.__spec__.name == "hpc"
try:
    hpc.fuse_moe
except AttributeError as error:
    assert "fuse_moe" in str(error)
else:
    raise SystemExit("fuse_moe is there")
print(hpc.__file__)
"""


def test_register_gives_the_name_in_this_process_and_writes_nothing() -> None:
    code = "import hpcattn.integrations.hpc as d\nm = d.register()\nassert d.register() is m\n"
    code += (
        "import hpc\nassert hpc is m\nassert hpc.attention_decode_bf16 is d.attention_decode_bf16"
    )
    printed = output_of(code + CHECK)
    assert printed == str(install.DROPIN / "hpc" / "__init__.py")


def test_the_folder_on_the_path_is_a_way_too() -> None:
    assert output_of(CHECK, install.DROPIN) == str(install.DROPIN / "hpc" / "__init__.py")
    again = "import hpcattn.integrations.hpc as d\nimport hpc\nassert d.register() is hpc"
    output_of(again, install.DROPIN)


def test_importing_the_integration_imports_no_torch() -> None:
    code = "import sys\nimport hpcattn.integrations.hpc as d\n"
    code += (
        "from hpcattn.integrations.hpc import install\nd.QuantType\nprint('torch' in sys.modules)"
    )
    assert output_of(code) == "False"


def test_register_leaves_another_package_alone(tmp_path: Path) -> None:
    foreign = foreign_package(tmp_path)
    code = "import hpcattn.integrations.hpc as d\n"
    done = python(code + "d.register()", tmp_path)
    assert done.returncode == 1
    assert f"'hpc' is another package here, {foreign}" in done.stderr
    loaded = python("import hpc\n" + code + "d.register()", tmp_path)
    assert f"'hpc' is another package here, {foreign}" in loaded.stderr
    name = output_of(code + "d.register(shadow=True)\nimport hpc\nprint(hpc.__file__)", tmp_path)
    assert name == str(install.DROPIN / "hpc" / "__init__.py")
    module = tmp_path / "module"
    module.mkdir()
    (module / "hpc.py").write_text(FOREIGN)
    assert (
        f"another package here, {module / 'hpc.py'}" in python(code + "d.register()", module).stderr
    )


def test_a_bare_folder_of_that_name_owns_nothing(tmp_path: Path) -> None:
    (tmp_path / "hpc").mkdir()
    output_of("import hpcattn.integrations.hpc as d\nd.register()" + CHECK, tmp_path)


def test_install_use_and_uninstall(tmp_path: Path) -> None:
    assert install.install(tmp_path) == f"installed: {tmp_path / 'hpc'}"
    assert output_of(CHECK, tmp_path) == str(tmp_path / "hpc" / "__init__.py")
    assert install.status(tmp_path) == f"'hpc' is hpcattn's drop-in: {tmp_path / 'hpc'}"
    assert install.install(tmp_path) == f"brought up to date: {tmp_path / 'hpc'}"
    assert (tmp_path / "hpc" / "py.typed").exists()
    assert install.uninstall(tmp_path) == f"removed: {tmp_path / 'hpc'}"
    assert list(tmp_path.iterdir()) == []
    assert install.uninstall(tmp_path).startswith("nothing to remove")
    assert install.status(tmp_path) == f"no package 'hpc' in {tmp_path}"


@pytest.mark.parametrize("kind", ["package", "module", "bare folder", "link"])
def test_install_and_uninstall_leave_another_package_alone(tmp_path: Path, kind: str) -> None:
    if kind == "package":
        foreign_package(tmp_path)
    elif kind == "module":
        (tmp_path / "hpc.py").write_text(FOREIGN)
    elif kind == "bare folder":
        (tmp_path / "hpc").mkdir()
    else:
        (tmp_path / "hpc").symlink_to(tmp_path / "nowhere")
    before = snapshot(tmp_path)
    with pytest.raises(install.InstallError, match="is another package here"):
        install.install(tmp_path)
    if kind in ("package", "bare folder"):
        with pytest.raises(install.InstallError, match="is another package here"):
            install.uninstall(tmp_path)
        assert install.status(tmp_path).startswith("'hpc' is another package")
    assert snapshot(tmp_path) == before
    assert len(list(tmp_path.iterdir())) == 1


def test_what_was_installed_over_ours_is_left_alone(tmp_path: Path) -> None:
    install.install(tmp_path)
    (tmp_path / "hpc" / "__init__.py").write_text(FOREIGN)
    before = snapshot(tmp_path)
    for action in (install.install, install.uninstall):
        with pytest.raises(install.InstallError, match="is not as hpcattn wrote it"):
            action(tmp_path)
    assert snapshot(tmp_path) == before
    assert "changed since: __init__.py" in install.status(tmp_path)


def test_files_of_others_within_ours_stay(tmp_path: Path) -> None:
    install.install(tmp_path)
    (tmp_path / "hpc" / "note.txt").write_text("mine")
    assert install.uninstall(tmp_path).endswith("others' files stay: note.txt")
    assert snapshot(tmp_path) == {"hpc/note.txt": b"mine"}


def test_a_damaged_marker_is_not_ours(tmp_path: Path) -> None:
    install.install(tmp_path)
    for text in ("", "[]", '{"files": 3}', "{"):
        (tmp_path / "hpc" / install.MARKER).write_text(text)
        with pytest.raises(install.InstallError, match="another package"):
            install.uninstall(tmp_path)


def test_install_looks_on_the_whole_path(tmp_path: Path) -> None:
    """Into this Python's own folder, with another package of that name elsewhere on the path."""
    foreign_package(tmp_path)
    code = "from hpcattn.integrations.hpc import install\ninstall.install()"
    done = python(code, tmp_path)
    assert done.returncode == 1
    assert "'hpc' is another package on this Python's path" in done.stderr


def test_a_folder_that_is_missing_or_closed(tmp_path: Path) -> None:
    with pytest.raises(install.InstallError, match=r"is no folder\. Name an existing one"):
        install.install(tmp_path / "none")
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        with pytest.raises(PermissionError):
            install.install(tmp_path)


def test_the_module_as_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "--target", str(tmp_path)]) == 0
    assert main(["status", "--target", str(tmp_path)]) == 0
    assert main(["uninstall", "--target", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count(str(tmp_path / "hpc")) == 3
    foreign_package(tmp_path)
    assert main(["install", "--target", str(tmp_path)]) == 1
    assert "is another package here" in capsys.readouterr().err


def test_the_command_line(tmp_path: Path) -> None:
    target = ("--target", str(tmp_path))
    assert run("install-hpc", *target).out.startswith("installed: ")
    answer = run("install-hpc", *target, "--status", "--json").json
    assert answer["action"] == "status"
    assert "hpcattn's drop-in" in answer["message"]
    assert run("install-hpc", *target, "--uninstall").out.startswith("removed: ")
    assert run("install-hpc", "--status", "--uninstall").code == 2
    foreign_package(tmp_path)
    refused = run("install-hpc", *target)
    assert refused.code == 1
    assert "is another package here" in refused.err
    assert "internal error" not in refused.err


def test_the_epsilon_comes_from_the_environment() -> None:
    code = "import hpcattn.integrations.hpc as d\nprint(d.norm_eps())"
    assert output_of(code, HPCATTN_HPC_NORM_EPS="1e-5") == "1e-05"
    assert "HPCATTN_HPC_NORM_EPS is 'x'" in python(code, HPCATTN_HPC_NORM_EPS="x").stderr
    assert "HPCATTN_HPC_NORM_EPS is -1.0" in python(code, HPCATTN_HPC_NORM_EPS="-1").stderr


def test_the_marker_lists_what_was_written(tmp_path: Path) -> None:
    install.install(tmp_path)
    marker = json.loads((tmp_path / "hpc" / install.MARKER).read_text())
    written = {p.name for p in (tmp_path / "hpc").iterdir()} - {install.MARKER}
    assert set(marker["files"]) == written == {"__init__.py", "py.typed"}
    assert hpc.register.__module__ == "hpcattn.integrations.hpc.install"
