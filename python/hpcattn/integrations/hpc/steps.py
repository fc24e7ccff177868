# SPDX-License-Identifier: Apache-2.0
"""What the layers of a step share: where requests start, their lengths, and the plan.

`assign_attention_decode_task` marks the beginning of a step on the `task_map` tensor, and launches
nothing. The first attention call of the step makes the plan from its own lengths, the step's other
layers use it. A plan is handed on only where all of these are the same: the layers' group, the
number of rows, the tensor of lengths, the stream, and the graph capture (its plan is a part of the
captured graph, so that each replay plans anew). Any other call plans for itself, so the answer
never depends on the task map.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Callable, Hashable

import torch

from hpcattn.plan import AttentionGroup, plan_attention

_ATTRIBUTE = "_hpcattn_step"
_MAX_TABLES = 64
_LEAST_ENTRIES = 1024

_tables: dict[tuple[torch.device, int], torch.Tensor] = {}
# Every table that was ever handed out: a captured graph may read one for as long as it lives.
_kept: list[torch.Tensor] = []


@functools.cache
def _capture_info() -> Callable[[int], int] | None:
    """A function stream -> id of its capture (0: none); None where the driver has none."""
    try:
        info = ctypes.CDLL("libcuda.so.1").cuStreamGetCaptureInfo_v2
    except (OSError, AttributeError):
        return None
    pointer = ctypes.c_void_p
    info.argtypes = [pointer, pointer, pointer, pointer, pointer, pointer]
    info.restype = ctypes.c_int

    def capture_of(stream: int) -> int:
        status, number = ctypes.c_int(0), ctypes.c_uint64(0)
        if info(stream, ctypes.byref(status), ctypes.byref(number), None, None, None) != 0:
            return -1
        return number.value if status.value else 0

    return capture_of


def _place(device: torch.device) -> tuple[int, int]:
    """The stream that work on a device goes to now, and its capture: 0 none, -1 an unknown one."""
    if device.type != "cuda":
        return 0, 0
    stream = torch.cuda.current_stream(device).cuda_stream
    if stream == 0:
        return 0, 0  # the legacy default stream can not be captured
    capture_of = _capture_info()
    if capture_of is None:
        return stream, -int(torch.cuda.is_current_stream_capturing())
    return stream, capture_of(stream)


def _is_real(tensor: torch.Tensor) -> bool:
    """Whether a tensor has data, so that something made for it may be kept."""
    return type(tensor) is torch.Tensor and not torch.compiler.is_compiling()


def request_starts(lengths: torch.Tensor, rows: int) -> torch.Tensor:
    """`cu_seqlens_q` of requests with `rows` rows each: 0, rows, 2 * rows, ...

    A slice of a table that is made once a device and number of rows, by a copy that the host waits
    for, so that every stream sees it. Within a graph capture nothing can be kept: what is captured
    has no numbers before the first replay. A table that is missing then is made within the graph.

    Args:
        lengths: `[num_requests]`, on the device in question.
        rows: Query rows of each request.

    Returns:
        `[num_requests + 1]` int32.
    """
    entries = lengths.shape[0] + 1
    device = lengths.device
    key = (device, rows)
    table = _tables.get(key)
    if table is not None and table.shape[0] >= entries:
        return table[:entries]
    if not _is_real(lengths) or _place(device)[1] != 0 or len(_tables) >= _MAX_TABLES:
        return torch.arange(entries, dtype=torch.int32, device=device) * rows
    most = (2**31 - 1) // max(rows, 1) + 1
    size = min(max(_LEAST_ENTRIES, 1 << entries.bit_length()), max(most, entries))
    with torch.inference_mode(False):
        table = (torch.arange(size, dtype=torch.int32) * rows).to(device)
    _kept.append(table)
    _tables[key] = table
    return table[:entries]


@dataclasses.dataclass
class Step:
    """What a task map carries from layer to layer within one step."""

    key: Hashable = None
    lengths: torch.Tensor | None = None  # held, so that its address is no other tensor's
    kv_lens: torch.Tensor | None = None
    plan: torch.Tensor | None = None


def begin_step(task_map: torch.Tensor) -> None:
    """Forgets what the layers of the last step shared."""
    setattr(task_map, _ATTRIBUTE, Step())


def _total(lengths: torch.Tensor, rows: int, included: bool) -> torch.Tensor:
    return lengths if included else lengths + rows


def lengths_and_plan(
    task_map: torch.Tensor | None,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    rows: int,
    included: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """KV lengths with the new tokens, and the step's plan where the task map has one to share.

    Args:
        task_map: As the caller gave it.
        q: Of the layer.
        k_cache: Of the layer.
        starts: `cu_seqlens_q`.
        lengths: `[num_requests]` int32 as the caller gave them.
        rows: Query rows of each request.
        included: Whether `lengths` counts the new tokens.

    Returns:
        `kv_lens`, and a plan or None: then the attention call makes its own.
    """
    step = None if task_map is None else getattr(task_map, _ATTRIBUTE, None)
    if step is None or not _is_real(lengths) or lengths.shape[0] == 0:
        return _total(lengths, rows, included), None
    place = _place(lengths.device)
    if place[1] == -1:
        return _total(lengths, rows, included), None
    version = 0 if lengths.is_inference() else lengths._version
    view = (lengths.data_ptr(), lengths.shape[0], lengths.stride(0), version)
    group = (q.shape[1:], k_cache.shape[1:3], q.dtype, k_cache.dtype)
    key = (group, rows, included, view, lengths.device, place)
    if step.key != key or step.kv_lens is None:
        kv_lens = _total(lengths, rows, included)
        # The number of rows is named, so that nothing is read back from the device.
        tokens = kv_lens.shape[0] * rows
        of = AttentionGroup.of(q, k_cache)
        step.plan = plan_attention(of, starts, kv_lens, num_tokens=tokens)
        step.kv_lens, step.lengths, step.key = kv_lens, lengths, key
    return step.kv_lens, step.plan
