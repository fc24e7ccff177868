# SPDX-License-Identifier: Apache-2.0
"""The application: its commands, and `main`, which the script `hpcattn` calls."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Annotated, Any

import typer

from hpcattn.bench.machine import package_version
from hpcattn.cli import shell
from hpcattn.cli.bench import bench
from hpcattn.cli.doctor import doctor
from hpcattn.cli.explain import explain
from hpcattn.cli.install_hpc import install_hpc
from hpcattn.cli.perplexity import perplexity
from hpcattn.cli.prepare import prepare

app = typer.Typer(
    name="hpcattn",
    help="Paged attention for LLM serving: text from a model, measurements, explanations.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_TRANSFORMERS_MISSING = (
    "this needs Transformers, which is not installed. pip install 'hpcattn[transformers]'"
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"hpcattn {package_version('hpcattn') or 'from a folder, not installed'}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Paged attention for LLM serving: text from a model, measurements, explanations."""


def _missing_generate(context: typer.Context, json_output: shell.JsonOption = False) -> None:
    """Text from a model, its attention computed by hpcattn (needs Transformers)."""
    raise ModuleNotFoundError(_TRANSFORMERS_MISSING)


def _generate_function() -> Callable[..., Any] | None:
    """The command `generate`, or None where Transformers is missing."""
    if importlib.util.find_spec("transformers") is None:
        return None
    from hpcattn.cli.generate import generate

    command: Callable[..., Any] = generate
    return command


_generate = _generate_function()
if _generate is not None:
    app.command("generate")(shell.command("generate")(_generate))
else:
    app.command(
        "generate", context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
    )(shell.command("generate")(_missing_generate))
app.command("bench")(shell.command("bench")(bench))
app.command("doctor")(shell.command("doctor")(doctor))
app.command("explain")(shell.command("explain")(explain))
app.command("perplexity")(shell.command("perplexity")(perplexity))
app.command("prepare")(shell.command("prepare")(prepare))
app.command("install-hpc")(shell.command("install-hpc")(install_hpc))


def main() -> None:
    """Runs the command line."""
    app(prog_name="hpcattn")
