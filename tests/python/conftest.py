# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("default", max_examples=25, deadline=None)
hypothesis.settings.register_profile("long", max_examples=600, deadline=None)
hypothesis.settings.load_profile(
    "long" if os.environ.get("HPCATTN_LONG_TESTS") == "1" else "default"
)


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    """Nothing here computes gradients; tests of their refusal turn grad mode on themselves."""
    with torch.no_grad():
        yield
