# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

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


@dataclass
class Engines:
    """Engines of one model.

    Attributes:
        ours: With hpcattn; prompts are cut into chunks, common prefixes are shared.
        peer: The same with vLLM's own CPU_ATTN.
        tight: With hpcattn, speculation by n-grams, and a pool of few pages.
    """

    ours: Engine
    peer: Engine
    tight: Engine


@pytest.fixture(scope="session")
def engines() -> Iterator[Engines]:
    chunks = {"max_num_batched_tokens": 64}
    drafts = {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 1,
    }
    with (
        start("hpcattn", **chunks) as ours,
        start("CPU_ATTN", **chunks) as peer,
        start(
            "hpcattn",
            **chunks,
            block_size=16,
            num_gpu_blocks_override=16,
            max_model_len=240,
            speculative_config=drafts,
        ) as tight,
    ):
        for engine in (ours, peer, tight):
            engine.wait()
        yield Engines(ours, peer, tight)
