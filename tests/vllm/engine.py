# SPDX-License-Identifier: Apache-2.0
"""vLLM's engine in a process of its own, driven by lines of JSON.

The tests start it by `start`; run as a program this file is that process.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SECONDS = 300
_READY = {"ready": True}


def environment(backend: str) -> dict[str, str]:
    """For a process whose CPU_ATTN is `backend`, "hpcattn" or "CPU_ATTN"."""
    choice = {"hpcattn": "cpu", "CPU_ATTN": "off"}[backend]
    # One thread: of two cores vLLM leaves one to its front end, and where other programs run, each
    # meeting of several threads costs a time slice.
    defaults = {"OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    return {**defaults, **os.environ, "HPCATTN_VLLM": choice}


def model_folder() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder."""
    from hpcattn import models

    return models.find(models.BUILTIN)


class Engine:
    """A running engine."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self._ready = False

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait(_SECONDS)
            raise RuntimeError(f"the engine ended:\n{self._log.read_text()[-4000:]}")
        return json.loads(line)

    def wait(self) -> None:
        """Until it is ready; several may start at once."""
        if not self._ready:
            assert self._answer() == _READY
            self._ready = True

    def generate(self, prompts: list[str], max_tokens: int, **options: Any) -> dict[str, Any]:
        """Greedy tokens of each prompt (`tokens`), `seconds`, `cpu_seconds`, and the counts."""
        self.wait()
        assert self._process.stdin is not None
        request = {"prompts": prompts, "max_tokens": max_tokens, **options}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = self._answer()
        return answer


@contextlib.contextmanager
def start(backend: str, **options: Any) -> Iterator[Engine]:
    """An engine of SmolLM2 in float32 on the CPU.

    Args:
        backend: As `environment`.
        **options: Of vLLM's `LLM`.
    """
    defaults = {
        "model": str(model_folder()),
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 1024,
        "kv_cache_memory_bytes": 1 << 29,
        "disable_log_stats": False,
    }
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with (
            log.open("w") as errors,
            subprocess.Popen(
                [sys.executable, __file__, json.dumps({**defaults, **options})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**environment(backend), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            ) as process,
        ):
            try:
                yield Engine(process, log)
            finally:
                process.kill()  # its own way to end takes long, and nothing is lost


def _counted(llm: Any) -> dict[str, int]:
    """The engine's counters, and hpcattn's calls."""
    import hpcattn

    counters = {
        metric.name.removeprefix("vllm:"): int(metric.value)
        for metric in llm.get_metrics()
        if hasattr(metric, "value")
    }
    return {**counters, **hpcattn.call_counts()}


def _serve() -> None:
    # Whatever the engine prints goes to the log; answers alone go to the pipe.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    from vllm import LLM, SamplingParams

    llm = LLM(**json.loads(sys.argv[1]))
    answers.write(json.dumps(_READY) + "\n")
    for line in sys.stdin:
        request = json.loads(line)
        parameters = SamplingParams(
            temperature=0.0, max_tokens=request["max_tokens"], ignore_eos=True
        )
        begin, begin_cpu = time.perf_counter(), time.process_time()
        outputs = llm.generate(request["prompts"], parameters, use_tqdm=False)
        seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - begin_cpu
        answer = {
            "tokens": [list(output.outputs[0].token_ids) for output in outputs],
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "counted": _counted(llm),
        }
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    _serve()
