# SPDX-License-Identifier: Apache-2.0
"""vLLM's attention by hpcattn: a plugin that vLLM finds by itself (`vllm.general_plugins`).

On a GPU it is chosen as `--attention-backend CUSTOM`. vLLM's CPU platform takes one backend alone,
CPU_ATTN; with HPCATTN_VLLM=cpu in the environment that name stands for hpcattn.

Importing this module imports neither torch nor vLLM.
"""

from __future__ import annotations

import os

__all__ = ["ENVIRONMENT", "options", "register"]

ENVIRONMENT = "HPCATTN_VLLM"
_OPTIONS = {
    "off": "nothing is registered",
    "cpu": "CPU_ATTN, the one backend of vLLM's CPU platform, is hpcattn",
}


def options(text: str) -> frozenset[str]:
    """The options in the environment variable's text, words with commas between them.

    Raises:
        ValueError: A word that is no option.
    """
    words = frozenset(word.strip().lower() for word in text.split(",") if word.strip())
    unknown = sorted(words - _OPTIONS.keys())
    if unknown:
        known = ", ".join(f"{name!r} ({meaning})" for name, meaning in _OPTIONS.items())
        raise ValueError(
            f"{ENVIRONMENT} is {text!r}: {', '.join(map(repr, unknown))} is no option, expected of"
            f" {known}."
        )
    return words


def register() -> None:
    """Registers the backend; vLLM calls it in each of its processes.

    A version of vLLM that the adapter does not know gets a warning, and nothing is registered.
    Calling it again changes nothing.

    Raises:
        ValueError: The environment variable has a word that is no option.
    """
    chosen = options(os.environ.get(ENVIRONMENT, ""))
    if "off" in chosen:
        return
    from hpcattn.integrations.vllm import _versions

    if _versions.refusal() is not None:
        _versions.warn_once()
        return
    from hpcattn.integrations.vllm import _registry

    _registry.register(cpu="cpu" in chosen)
