# SPDX-License-Identifier: Apache-2.0
"""The native library's errors as Python's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_KINDS: dict[str, type[Exception]] = {
    "invalid argument: ": ValueError,
    "not supported: ": NotImplementedError,
}


def run(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls an operator.

    Whatever a native operator throws, torch makes it a RuntimeError; the kind is the beginning of
    its text. Within torch.compile the call goes to the graph as it is, and an error at run time
    stays a RuntimeError.

    Raises:
        ValueError: An argument contradicts the operator's page.
        NotImplementedError: A sound request for something that the library does not do.
    """
    if torch.compiler.is_compiling():
        return op(*args, **kwargs)
    try:
        return op(*args, **kwargs)
    except RuntimeError as error:
        text = str(error)
        for prefix, kind in _KINDS.items():
            if text.startswith(prefix):
                raise kind(text.removeprefix(prefix)) from None
        raise
