# SPDX-License-Identifier: Apache-2.0
"""What is counted, what importing does, and calls from threads and forked processes."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import hpcattn
from batches import Batch, make_batch


def test_calls_and_kernels_are_counted() -> None:
    batch = make_batch(lengths=[(1, 20)])
    tensors, arguments = batch.paged()
    hpcattn.reset_call_counts()
    assert set(hpcattn.call_counts().values()) == {0}
    assert hpcattn.kernels() == {}
    for _ in range(3):
        hpcattn.paged_attention(*tensors, **arguments, scale=1.0)
    with pytest.raises(ValueError, match="scale is nan"):
        hpcattn.paged_attention(*tensors, **arguments, scale=float("nan"))
    counts = hpcattn.call_counts()
    assert counts.pop("paged_attention") == 3, "a refused call does not count"
    assert set(counts.values()) == {0}
    assert sum(hpcattn.kernels().values()) >= 3
    assert all(name.startswith("cpu/") for name in hpcattn.kernels())


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_loads_nothing() -> None:
    code = """
import sys, threading, hpcattn
assert "torch" not in sys.modules
assert "hpcattn.ops" not in sys.modules
assert threading.active_count() == 1
assert len(open("/proc/self/maps").read().split("hpcattn_torch")) == 1
assert hpcattn.__version__[0].isdigit()
assert set(hpcattn.__all__) <= set(dir(hpcattn))
try:
    hpcattn.nothing
except AttributeError as error:
    print(error)
"""
    assert "has no attribute 'nothing'" in run_python(code)


def test_a_process_may_fork_after_calls() -> None:
    """The child has none of torch's threads, and must not wait for them."""
    code = """
import os, torch, hpcattn
torch.set_num_threads(2)
q = torch.randn(200, 4, 64)
cu = torch.tensor([0, 200], dtype=torch.int32)
def run():
    return hpcattn.packed_attention(q, q, q, cu_seqlens_q=cu, cu_seqlens_k=cu, scale=0.1)
with torch.inference_mode():
    first = run()
    child = os.fork()
    if child == 0:
        os._exit(0 if run().numpy().tobytes() == first.numpy().tobytes() else 3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run_python(code) == "0\n"


@pytest.mark.parametrize(
    ("torch_module", "message"),
    [
        ("__version__ = '2.9.1'", "hpcattn needs torch 2.10 or newer"),
        ("raise ImportError('no such file')", "torch can not be imported"),
    ],
)
def test_an_old_or_missing_torch_is_named(
    tmp_path_factory: pytest.TempPathFactory, torch_module: str, message: str
) -> None:
    folder = tmp_path_factory.mktemp("torch")
    (folder / "torch.py").write_text(torch_module)
    code = f"""
import sys
sys.path.insert(0, {str(folder)!r})
import hpcattn
try:
    hpcattn.paged_attention
except ImportError as error:
    print(error)
"""
    text = run_python(code)
    assert message in text
    assert "pip install" in text


def test_torch_threads_are_used() -> None:
    threads = torch.get_num_threads()
    batch = make_batch(lengths=[(40, 200)] * 3)
    tensors, arguments = batch.paged()
    try:
        results = []
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            results.append(hpcattn.paged_attention(*tensors, **arguments, scale=0.1))
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert torch.allclose(result, results[0], atol=1e-5)


def test_calls_from_several_threads_at_once() -> None:
    batches = [make_batch(seed=i, lengths=[(7, 90), (1, 300)]) for i in range(4)]

    def serve(batch: Batch) -> list[torch.Tensor]:
        tensors, arguments = batch.paged()
        with torch.inference_mode():
            return [hpcattn.paged_attention(*tensors, **arguments, scale=0.1) for _ in range(20)]

    alone = [serve(batch)[0] for batch in batches]
    with ThreadPoolExecutor(len(batches)) as pool:
        together = list(pool.map(serve, batches))
    for expected, results in zip(alone, together, strict=True):
        assert all(torch.equal(expected, result) for result in results)
