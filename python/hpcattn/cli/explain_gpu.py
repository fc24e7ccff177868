# SPDX-License-Identifier: Apache-2.0
"""`hpcattn explain --device cuda`: the kernels of a call and the plan of its batch, by host code.

No GPU is needed: the planner of a GPU also runs on the host, and kernels are known by their specs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from hpcattn.bench.batch import Batch
from hpcattn.cli import shell
from hpcattn.cli.schedule import schedule

if TYPE_CHECKING:
    from hpcattn._introspect import Task

# Multiprocessors of a usual GPU of a compute capability, and its name. Another has other numbers.
_USUAL = {
    80: (108, "A100"),
    86: (84, "A40"),
    89: (142, "L40S"),
    90: (132, "H100 SXM and H200"),
    100: (148, "B200"),
}
_USUAL_CAPABILITY = 90


@dataclass(frozen=True)
class Gpu:
    """The GPU that is planned for.

    Attributes:
        capability: 90 for 9.0; None: nobody said it, and there is no GPU here.
        num_sms: Its multiprocessors.
        source: Where that number is from.
    """

    capability: int | None
    num_sms: int
    source: str

    def report(self, kernels: dict[str, Any]) -> dict[str, Any]:
        """For a JSON report, with the kernels of a call."""
        return {
            "capability": self.capability,
            "multiprocessors": self.num_sms,
            "multiprocessors_of": self.source,
            **kernels,
        }


def parse_capability(capability: str | None, arch: str | None) -> int | None:
    """`9.0` or `sm_90a` -> 90. Raises ValueError where one can not be read or they contradict."""
    by_arch = None
    if arch is not None:
        match = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
        if match is None:
            raise ValueError(f"--arch {arch}: expected sm_ and a number, as in sm_90a or sm_80")
        by_arch = 10 * int(match[1]) + int(match[2])
    if capability is None:
        return by_arch
    major, dot, minor = capability.partition(".")
    if not (major.isdigit() and (minor.isdigit() or not dot) and len(minor) <= 1):
        raise ValueError(f"--capability {capability}: expected MAJOR.MINOR, as in 9.0")
    found = 10 * int(major) + int(minor or 0)
    if by_arch not in (None, found):
        raise ValueError(f"--capability {capability} and --arch {arch} are two GPUs; give one")
    return found


def place(capability: int | None, num_sms: int) -> Gpu:
    """The GPU that the options name; what they leave open is of the one here, or of a usual one."""
    import torch

    if torch.cuda.is_available():
        found = torch.cuda.get_device_properties(torch.cuda.current_device())
        here = 10 * found.major + found.minor
        if capability in (None, here):
            count = num_sms or found.multi_processor_count
            return Gpu(here, count, "--multiprocessors" if num_sms else f"{found.name}, here")
    usual, name = _USUAL.get(capability or 0, _USUAL[_USUAL_CAPABILITY])
    return Gpu(capability, num_sms or usual, "--multiprocessors" if num_sms else name)


def plan(
    batch: Batch, gpu: Gpu, group: dict[str, Any], fixed_split: int, kernel: str
) -> tuple[dict[str, Any], list[list[Task]], list[int]]:
    """The plan in numbers, the tasks of each worker, and what they cost."""
    from hpcattn import _introspect

    found = _introspect.plan_preview(
        batch.cu_seqlens_q(),
        list(batch.kv_lens),
        num_sms=gpu.num_sms,
        capability=gpu.capability or _USUAL_CAPABILITY,
        fixed_split=fixed_split,
        **group,
    )
    taken, costs = schedule(found.tasks, found.num_workers)
    total = sum(costs)
    numbers = {
        **found.numbers,
        "num_tasks": len(found.tasks),
        "workers": found.num_workers,
        "idle_workers": sum(not mine for mine in taken),
        "kernels": {kernel: len(found.tasks)},
        # 1: all workers end together. It is what the busiest worker does over an equal share.
        "busiest_over_mean": max(costs) * found.num_workers / total if total else 1.0,
    }
    return numbers, taken, costs


def show(gpu: dict[str, Any], numbers: dict[str, Any], picture: list[str], tasks: bool) -> None:
    """Prints the kernels of a call and the plan."""
    lines = ["", f"kernels of a call on {gpu['arch']}:"]
    for kernel in gpu["kernels"]:
        lines += [
            f"  {kernel['name']}",
            f"    {kernel['cubin']}; ctas of {kernel['threads']} threads, "
            f"{kernel['shared_bytes']} bytes of dynamic shared memory",
        ]
    if any(kernel["cubin"] == "not compiled" for kernel in gpu["kernels"]):
        lines.append("  what is not compiled is by the first call, or by `hpcattn prepare` before")
    lines += [
        "",
        f"plan: {numbers['num_tasks']} tasks over {numbers['workers']} ctas, "
        f"{numbers['workers'] // gpu['multiprocessors']} on each of "
        f"{gpu['multiprocessors']} multiprocessors ({gpu['multiprocessors_of']})",
        f"  tiles: {numbers['narrow_tiles']} narrow, {numbers['wide_tiles']} wide",
        f"  split: {numbers['num_partials']} tasks give partial results, "
        f"{numbers['num_combines']} combines join them",
        f"  work: longest task {numbers['longest_task']} of {numbers['total_work']}, in the "
        "planner's unit of 100 clocks",
        f"  balance: busiest cta {numbers['busiest_over_mean']:.3f} times an equal share, "
        f"{numbers['idle_workers']} idle",
        f"  workspace: plan {numbers['plan_bytes']} bytes, partials {numbers['partial_bytes']}",
    ]
    if tasks:
        lines += ["", "tasks over ctas, as wide as they cost, named by request:", *picture]
    for line in lines:
        shell.out().print(Text(line), soft_wrap=True)
