# SPDX-License-Identifier: Apache-2.0
"""What all commands share: version, help, errors as one message, missing extras."""

from __future__ import annotations

import json
import re
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from cli_support import run, run_process
from hpcattn.bench.machine import package_version
from hpcattn.cli import shell

COMMANDS = ("generate", "bench", "doctor", "explain", "install-hpc")


def test_version_is_the_packages():
    outcome = run("--version")
    assert outcome.code == 0
    assert outcome.out == f"hpcattn {package_version('hpcattn')}\n"


def test_help_names_every_command():
    outcome = run("--help")
    assert outcome.code == 0
    for name in COMMANDS:
        assert re.search(rf"^\s+{name}\s", outcome.out, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_json_and_debug(command):
    outcome = run(command, "--help")
    assert outcome.code == 0
    assert "--json" in outcome.out
    assert "--debug" in outcome.out


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option_is_bad_input(command):
    outcome = run(command, "--bogus")
    assert outcome.code == shell.EXIT_BAD_INPUT
    assert "No such option" in outcome.err
    assert outcome.out == ""


def _app(error: Exception) -> typer.Typer:
    """An application of one command, which raises."""
    app = typer.Typer(pretty_exceptions_enable=False)

    def fail(as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
        raise error

    app.command("fail")(shell.command("fail")(fail))
    return app


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("heads are 3"), 2),
        (NotImplementedError("heads are 3"), 2),
        (typer.BadParameter("heads are 3"), 2),
        (RuntimeError("heads are 3"), 1),
        (ModuleNotFoundError("heads are 3"), 1),
        (MemoryError("heads are 3"), 1),
    ],
)
def test_an_error_is_one_message(error, code):
    result = CliRunner().invoke(_app(error), [])
    assert result.exit_code == code
    assert result.stderr == "hpcattn fail: error: heads are 3\n"
    assert result.stdout == ""


def test_an_error_in_json():
    result = CliRunner().invoke(_app(ValueError("heads are 3")), ["--json"])
    assert result.exit_code == 2
    assert json.loads(result.stdout) == {"error": {"type": "ValueError", "message": "heads are 3"}}


def test_a_missing_file_is_named(tmp_path):
    path = tmp_path / "absent"
    error = FileNotFoundError(2, "No such file or directory", str(path))
    result = CliRunner().invoke(_app(error), [])
    assert result.exit_code == 2
    assert result.stderr == f"hpcattn fail: error: {path}: No such file or directory\n"


def test_a_fault_of_ours_says_so():
    result = CliRunner().invoke(_app(KeyError("lost")), [])
    assert result.exit_code == 1
    assert "internal error, KeyError: 'lost'. --debug shows where." in result.stderr
    assert "Traceback" not in result.stderr


def test_debug_shows_the_traceback():
    result = CliRunner().invoke(_app(ValueError("heads are 3")), ["--debug"])
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "in fail" in result.stderr


def test_interruption_is_130():
    app = typer.Typer(pretty_exceptions_enable=False)

    def wait() -> None:
        raise KeyboardInterrupt

    app.command("wait")(shell.command("wait")(wait))
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 130
    assert result.stderr == "hpcattn wait: interrupted\n"


def test_json_without_nan():
    with pytest.raises(ValueError, match="not JSON compliant"):
        shell.print_json({"x": float("nan")})


def test_without_transformers_generate_says_what_to_install():
    code = (
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n == 'transformers' else real(n, *a)\n"
        "from hpcattn.cli import main; main()"
    )
    outcome = run_process("generate", "a prompt", "--max-new-tokens", "3", "--json", code=code)
    assert outcome.code == 1
    assert "pip install 'hpcattn[transformers]'" in outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.json["error"]["type"] == "ModuleNotFoundError"


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_its_packages_the_script_says_what_to_install(package):
    code = f"import sys; sys.modules[{package!r}] = None\nfrom hpcattn.cli import main; main()"
    outcome = run_process("doctor", code=code)
    assert outcome.code == 1
    assert f"needs {package}" in outcome.err
    assert "pip install 'hpcattn[cli]'" in outcome.err
    assert "Traceback" not in outcome.err
