# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` with the plugin found by its entry point answers an OpenAI client."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from conftest import Engines
from engine import environment, model_folder

_SECONDS = 240
_PROMPT = "The capital of France is"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.5)
    raise RuntimeError(f"the server is not healthy:\n{log.read_text()[-4000:]}")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    port = _free_port()
    log = tmp_path_factory.mktemp("serve") / "log"
    command = [
        *(sys.executable, str(Path(__file__).with_name("serve.py")), "serve", str(model_folder())),
        *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", "smollm2"),
        *("--dtype", "float32", "--enforce-eager", "--max-model-len", "512"),
        *("--kv-cache-memory-bytes", str(1 << 28)),
    ]
    # Its children too end with the process group.
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            env=environment("hpcattn"),
            stdout=output,
            stderr=output,
            start_new_session=True,
        ) as process,
    ):
        try:
            _wait_until_healthy(process, port, log)
            yield openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_completion_has_the_tokens_of_cpu_attn(client: openai.OpenAI, engines: Engines) -> None:
    completion = client.completions.create(
        model="smollm2",
        prompt=_PROMPT,
        max_tokens=16,
        temperature=0.0,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )
    answer = completion.choices[0]
    assert "Paris" in answer.text
    expected = engines.peer.generate([_PROMPT], 16)["tokens"][0]
    assert (answer.model_extra or {})["token_ids"] == expected


def test_a_chat_streams(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        max_tokens=16,
        temperature=0.0,
        stream=True,
    )
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in stream)
