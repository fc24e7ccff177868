# SPDX-License-Identifier: Apache-2.0
"""What `hpcattn doctor` says of one thing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing looked at.

    Attributes:
        name: What.
        state: `ok`, `missing`, `unsupported` or `failed`.
        detail: What was found.
        fix: How to get it right; "" where nothing needs to be done.
    """

    name: str
    state: str
    detail: str
    fix: str = ""
