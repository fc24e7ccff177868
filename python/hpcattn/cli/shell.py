# SPDX-License-Identifier: Apache-2.0
"""What all commands share: output to two channels, errors as one message, `--debug`.

Results go to standard output, in JSON where `--json` asks for it; progress and errors go to
standard error. Exit codes: 0 done, 1 it could not be done here, 2 the input was wrong.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, get_args

import typer
from rich.console import Console

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

# Tables stay readable in a file or a pipe, which have no width of their own.
_PIPE_WIDTH = 140

JsonOption = Annotated[
    bool, typer.Option("--json", help="JSON on standard output, and nothing else there.")
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def out() -> Console:
    """Standard output, for people."""
    return Console(
        width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False, markup=False
    )


def err() -> Console:
    """Standard error: progress and messages."""
    return Console(
        stderr=True,
        width=None if sys.stderr.isatty() else _PIPE_WIDTH,
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def print_json(value: object) -> None:
    """One JSON document on standard output; no NaN or infinity, which JSON does not have."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def _sort(error: Exception) -> tuple[int, str]:
    """The exit code and the text of an error."""
    text = str(error).strip()
    # Click's own errors carry their text in `message`; typer.BadParameter is one.
    text = getattr(error, "message", None) or text or type(error).__name__
    if isinstance(error, (ValueError, NotImplementedError, typer.BadParameter)):
        return EXIT_BAD_INPUT, text
    if isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError)):
        return EXIT_BAD_INPUT, f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.filename is not None:
        return EXIT_FAILED, f"{error.filename}: {error.strerror}"
    if isinstance(error, (RuntimeError, ImportError, OSError, MemoryError)):
        return EXIT_FAILED, text
    return EXIT_FAILED, f"internal error, {type(error).__name__}: {text}. --debug shows where."


def _json_parameter(signature: inspect.Signature) -> str | None:
    """The parameter that `--json` sets, by whatever name the command has for it."""
    for name, parameter in signature.parameters.items():
        for option in (parameter.default, *get_args(parameter.annotation)[1:]):
            # Within Annotated the first name stands in `default`.
            names = [getattr(option, "default", None), *(getattr(option, "param_decls", ()) or ())]
            if "--json" in names:
                return name
    return None


def command(name: str) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Makes a command function print one clear message for an error, and adds `--debug` to it.

    Args:
        name: As typed after `hpcattn`; messages begin with it.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        json_name = _json_parameter(signature)
        has_debug = "debug" in signature.parameters

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            debug = kwargs.get("debug", False) if has_debug else kwargs.pop("debug", False)
            try:
                function(*args, **kwargs)
            except (typer.Exit, typer.Abort):
                raise
            except KeyboardInterrupt:
                err().print(f"hpcattn {name}: interrupted")
                raise typer.Exit(EXIT_INTERRUPTED) from None
            except Exception as error:
                code, text = _sort(error)
                if debug:
                    traceback.print_exc(file=sys.stderr)
                err().print(f"hpcattn {name}: error: {text}")
                if json_name is not None and kwargs.get(json_name):
                    print_json({"error": {"type": type(error).__name__, "message": text}})
                raise typer.Exit(code) from None

        parameters = list(signature.parameters.values())
        if not has_debug:
            kind = inspect.Parameter.KEYWORD_ONLY
            extra = inspect.Parameter("debug", kind, default=False, annotation=DebugOption)
            parameters.append(extra)
        typed = signature.replace(parameters=parameters, return_annotation=None)
        wrapper.__dict__["__signature__"] = typed
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate
