# SPDX-License-Identifier: Apache-2.0
"""The native library's errors as Python's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_UNSUPPORTED = "not supported: "


def run(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls an operator.

    Torch turns an invalid argument into ValueError by itself, and everything else into
    RuntimeError: what the library does not support is told apart by the beginning of its text.
    Within torch.compile the call goes to the graph as it is, and an error at run time has torch's
    own type.

    Raises:
        NotImplementedError: A sound request for something that the library does not do.
    """
    if torch.compiler.is_compiling():
        return op(*args, **kwargs)
    try:
        return op(*args, **kwargs)
    except NotImplementedError:
        raise
    except RuntimeError as error:
        text = str(error)
        if text.startswith(_UNSUPPORTED):
            raise NotImplementedError(text.removeprefix(_UNSUPPORTED)) from None
        raise
