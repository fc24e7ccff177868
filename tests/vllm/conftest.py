# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

# Before vLLM is imported, here and in the processes that tests start: no network, no telemetry.
os.environ |= {
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

from engine import Engine, start


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="session")
def ours() -> Iterator[Engine]:
    """The engine with hpcattn; prompts are cut into chunks, common prefixes are shared."""
    with start("hpcattn", max_num_batched_tokens=64) as engine:
        yield engine


@pytest.fixture(scope="session")
def peer() -> Iterator[Engine]:
    """The same engine with its own CPU_ATTN."""
    with start("CPU_ATTN", max_num_batched_tokens=64) as engine:
        yield engine
