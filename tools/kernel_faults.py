# SPDX-License-Identifier: Apache-2.0
"""Faults of one line each, to be put into kernels on purpose. tools/break_kernels.py runs them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

ATTENTION = "GpuQuick.Attention"
ATTENTION_OF_FP8 = "GpuQuick.AttentionOfFp8"
STORE = "GpuQuick.Store"
ROPE = "GpuQuick.Rope"
MERGE = "GpuQuick.Merge"
PLANS = "GpuRefusals.APlanOfAnotherGroupOrOfOtherLengths"


@dataclass(frozen=True)
class Fault:
    """`old`, which is in `file` once, becomes `new`; the tests `tests` must then fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str = ATTENTION
    kernels: str = ""  # HPCATTN_KERNELS, of kernels that have to be asked for

    @property
    def included_name(self) -> str:
        """As an #include names the file: include/ and kernels/std/ are roots."""
        return self.file.removeprefix("include/").removeprefix("kernels/std/")

    def mutated(self, path: Path | None = None) -> str:
        """The text of `path` (none: this repository's file) with the fault in it."""
        path = path or ROOT / self.file
        text = path.read_text(encoding="utf-8")
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.name}: {path} has {count} times, expected once: {self.old}")
        return text.replace(self.old, self.new)


_KERNEL = "kernels/generic/attention/kernel.cuh"
_MASK = "kernels/generic/attention/mask.h"
_LOAD = "kernels/generic/attention/load.h"
_LOAD_TASK = "kernels/generic/attention/load_task.h"
_QUERY = "kernels/generic/attention/query.h"
_SCORES = "kernels/generic/attention/scores.h"
_OUTPUT = "kernels/generic/attention/output.h"
_EPILOGUE = "kernels/generic/attention/epilogue.h"
_MULTIPLY = "kernels/generic/attention/multiply.h"
_COMBINE = "kernels/generic/attention/combine.h"
_PREFILL = "kernels/sm90/prefill/"
_CLAIMS = "kernels/generic/attention/claims.h"
_DECODE = "kernels/sm90/decode/"
_ROWS = "src/plan/rows.h"
_LANE = "kernels/fused/rope/lane.h"
_PAIRS_TURN = "kernels/fused/rope_pairs/turn.h"
_PAIRS_ROW = "kernels/fused/rope_pairs/row.h"
_PAIRS_KERNEL = "kernels/fused/rope_pairs/kernel.cuh"

FAULTS = (
    # What a row sees.
    Fault("causal edge one token late", _ROWS, "position + 1);", "position + 2);"),
    Fault("window one token long", _ROWS, "position - mask.window + 1", "position - mask.window"),
    Fault(
        "window ahead one short", _ROWS, "position + mask.window)", "position + mask.window - 1)"
    ),
    Fault("no mask", _MASK, "score = seen ? score : negative_infinity();", "score = score;"),
    Fault("holes attended", _MASK, "score = hole ? negative_infinity() : score;", "score = score;"),
    Fault(
        "tile's bounds ignore the first row",
        _KERNEL,
        "token < shared.state->plain_begin || ",
        "",
    ),
    Fault("positions of a longer request", _QUERY, "task.kv_len - task.num_tokens", "task.kv_len"),
    # Softmax.
    Fault("output not rescaled", _KERNEL, "*= rescale[i][e / 2]", "*= 1.0F"),
    Fault("sum not rescaled", _SCORES, "sum[i][half] *= rescale[i][half];", ""),
    Fault("half of a row's sum", _SCORES, "__shfl_xor_sync(0xffffffffU, sum[i][half], 2)", "0.0F"),
    Fault(
        "warps joined without weights",
        _EPILOGUE,
        "part.x, share[w], totals[pair].x",
        "part.x, 1.0F, totals[pair].x",
    ),
    Fault("sink left out", _OUTPUT, " + ptx::ex2(sink_log2 - top);", ";"),
    Fault(
        "sink counted in each split",
        _EPILOGUE,
        "finish_row(reference, sum, negative_infinity())",
        "finish_row(reference, sum, load_sink(p.output, place.head))",
    ),
    Fault("lse to the base 2", _OUTPUT, "lse_log2 * kLn2", "lse_log2"),
    # Scales and transforms.
    Fault(
        "scale's sign lost", _QUERY, "p.scale < 0.0F ? 0x80008000U : 0U", "0U", "GpuQuick.Attention"
    ),
    Fault("k_scale dropped", _QUERY, "if (p.k_scale != nullptr)", "if (false)"),
    Fault("q_scale dropped", _QUERY, "if (p.q_scale != nullptr)", "if (false)"),
    Fault("v_scale dropped", _OUTPUT, "if (o.v_scale != nullptr)", "if (false)"),
    Fault("out_scale dropped", _OUTPUT, "if (o.out_scale != nullptr)", "if (false)"),
    Fault("softcap in other units", _SCORES, "softcap * kLog2E);", "softcap);"),
    Fault("ALiBi upside down", _SCORES, "fmaf(-row.slope", "fmaf(row.slope"),
    # Addresses.
    Fault("wrong page stride", _LOAD, "page[pass] * page_stride", "page[pass] * token_stride"),
    Fault("place within a tile", _LOAD, "place * token_stride", "row * token_stride"),
    Fault("V read with K's strides", _LOAD, "p_.v_page, p_.v_token", "p_.k_page, p_.k_token"),
    Fault("V's head by K's stride", _LOAD, "task.kv_head * p.v_head", "task.kv_head * p.k_head"),
    Fault("heads of a group mixed up", _OUTPUT, "kv_head * heads + row", "kv_head + row"),
    Fault("odd and even dims of fp8 V", _MULTIPLY, "pairs[1], 0x6420", "pairs[1], 0x7531"),
    # Splits.
    Fault("splits joined without weights", _COMBINE, "ptx::ex2(one - largest)", "1.0F"),
    Fault(
        "last split left out",
        _COMBINE,
        "split + i < c.num_splits &&",
        "split + i < c.num_splits - 1 &&",
    ),
    Fault("earlier partials not rescaled", _COMBINE, "total *= kept;", ""),
    Fault(
        "partials' rows mixed up",
        _COMBINE,
        "part_from += std::int64_t{c.stride}",
        "part_from += std::int64_t{1}",
    ),
    Fault("second step of a join left out", _COMBINE, "index = c.next;", "index = -1;"),
    # Claims.
    Fault(
        "a task that no cta claims",
        _CLAIMS,
        "num_ctas + static_cast<int>(before);",
        "num_ctas + static_cast<int>(before) + 1;",
    ),
    Fault(
        "claims not given back",
        _CLAIMS,
        "== num_tasks - 1) {",
        "== num_tasks) {",
        "GpuGraph.ClaimsAreGivenBackForTheNextLayer",
    ),
    Fault("rows of padding not written", _COMBINE, "(p.num_tokens - live) * p.num_q_heads", "0"),
    Fault(
        "plan's tiles end one token early",
        "src/plan/row_tile.h",
        "std::int64_t{request.kv_len} - request.num_tokens;",
        "std::int64_t{request.kv_len} - request.num_tokens - 1;",
    ),
    Fault(
        "other lengths not noticed",
        _LOAD_TASK,
        "if (kv_len == task.kv_len) return true;",
        "return true;",
        PLANS,
    ),
    # Hopper's prefill kernel.
    Fault(
        "K not waited for",
        _PREFILL + "task.h",
        "slots.wait_full(task.key(0));",
        "",
        kernels="prefill",
    ),
    Fault(
        "scores read before they are there",
        _PREFILL + "task.h",
        "ptx::wgmma_wait<1>();\n      masked",
        "masked",
        kernels="prefill",
    ),
    Fault(
        "dead rows of V multiplied",
        _PREFILL + "dead.h",
        "if (copied && token >= live.begin && token < live.end) continue;",
        "continue;",
        kernels="prefill",
    ),
    Fault(
        "boxes that were not copied attended",
        _PREFILL + "task.h",
        "if (masked.boxes != kAllBoxes) mask_boxes",
        "if (false) mask_boxes",
        kernels="prefill",
    ),
    Fault(
        "output of this turn not rescaled",
        _PREFILL + "task.h",
        "if (moved) rescale_output",
        "if (false) rescale_output",
        kernels="prefill",
    ),
    Fault(
        "both warpgroups with the first's q",
        _PREFILL + "task.h",
        "const std::uint32_t rows = warpgroup_ * kWarpgroupRows",
        "const std::uint32_t rows = 0 * kWarpgroupRows",
        kernels="prefill",
    ),
    Fault(
        "q overwritten while it is read",
        _PREFILL + "query.h",
        "queries.wait_empty(number);",
        "",
        kernels="prefill",
    ),
    Fault(
        "tiles of the request before",
        _PREFILL + "whole_tiles.h",
        "last - (among - before)",
        "last - among",
    ),
    Fault(
        "tiles that see farther counted as fewer",
        _PREFILL + "whole_tiles.h",
        "mine.tiles_from(p_, level + 1)",
        "mine.tiles_from(p_, level + 2)",
    ),
    Fault(
        "slots filled before they are free",
        _PREFILL + "load.h",
        "slots.wait_empty(at);",
        "",
        kernels="prefill",
    ),
    Fault(
        "fp8 prefill: V transposed before it is there",
        _PREFILL + "transpose.h",
        "slots.wait_full(from);",
        "",
        ATTENTION_OF_FP8,
        kernels="prefill",
    ),
    Fault(
        "fp8 prefill: V transposed over what is still multiplied",
        _PREFILL + "transpose.h",
        "transposed.wait_empty(to);",
        "",
        ATTENTION_OF_FP8,
        kernels="prefill",
    ),
    Fault(
        "fp8 prefill: dead rows of V transposed",
        _PREFILL + "transpose.h",
        "if (!live.all<kLayout>()) {",
        "if (false) {",
        ATTENTION_OF_FP8,
        kernels="prefill",
    ),
    Fault(
        "fp8 prefill: even dims for odd ones",
        _PREFILL + "transpose.h",
        "dims[i + 1] = ptx::prmt(pairs[i], pairs[i + 1], 0x7531);",
        "dims[i + 1] = ptx::prmt(pairs[i], pairs[i + 1], 0x6420);",
        ATTENTION_OF_FP8,
        kernels="prefill",
    ),
    Fault(
        "fp8 prefill: P in another order than V",
        _PREFILL + "multiply.h",
        "4 * step + r / 2 * 2",
        "4 * step + r / 2",
        ATTENTION_OF_FP8,
        kernels="prefill",
    ),
    # Hopper's decode kernel.
    Fault(
        "decode: no mask",
        _DECODE + "softmax.h",
        "score = seen ? score : negative_infinity();",
        "score = score;",
    ),
    Fault(
        "decode: dead values kept",
        _DECODE + "task.h",
        "if (live_tokens != kAllTokens) {",
        "if (false) {",
    ),
    Fault(
        "decode: output not rescaled",
        _DECODE + "task.h",
        "Products::rescale(output, rescale);",
        "",
    ),
    Fault(
        "decode: P's bias in the LSE",
        _DECODE + "softmax.h",
        "negative_infinity() : -shift[r][e];",
        "negative_infinity() : static_cast<float>(kBias) - shift[r][e];",
    ),
    Fault(
        "decode: first head's pages for all",
        _DECODE + "load.h",
        "0, place, 0, task.kv_head, from",
        "0, place, 0, 0, from",
    ),
    Fault(
        "decode: K copied for V",
        _DECODE + "load.h",
        "load(tile, page, params.v_map);\n    page",
        "load(tile, page, params.k_map);\n    page",
    ),
    Fault("decode: slots not waited for", _DECODE + "load.h", "slots.wait_empty(item);", ""),
    Fault(
        "decode: V not waited for",
        _DECODE + "task.h",
        "slots.wait_full(item);\n    products",
        "products",
    ),
    Fault(
        "decode: every pass takes the first rows",
        _DECODE + "pass.h",
        "pass.task.row_begin += skipped;",
        "",
    ),
    Fault(
        "decode: q's scale not in its factor",
        _DECODE + "query.h",
        "infos[i].factor *= scale;",
        "",
    ),
    Fault(
        "decode: maxima of one warp",
        _DECODE + "softmax.h",
        "top = fmaxf(top, of_warps[w * kStride + row]);",
        "",
    ),
    Fault(
        "decode: shifts never moved again",
        _DECODE + "softmax.h",
        "any = any || top > kSlack + static_cast<float>(kBias);",
        "",
    ),
    Fault(
        "decode: a warp moves its shifts alone",
        _DECODE + "task.h",
        "ptx::barrier_any(kComputeBarrier, kAttentionThreads, exceeded)",
        "(sync_computing(), exceeded)",
    ),
    Fault(
        "decode: one place for P of all tiles",
        _DECODE + "multiply.h",
        "kPBytes = kLayout.p_bytes(kSpec.rows);",
        "kPBytes = 0;",
    ),
    Fault(
        "decode: boxes that were not copied taken for live",
        _DECODE + "task.h",
        "boxes = shared.boxes(item);",
        "boxes = kAllBoxes;",
    ),
    # The other operators.
    Fault(
        "stored at the page's start",
        "kernels/fused/store/piece.h",
        "cache.row(place.page, place.place, head)",
        "cache.row(place.page, 0, head)",
        STORE,
    ),
    Fault(
        "first head's scale for all",
        "kernels/fused/store/piece.h",
        "p.scales[side].at(head)",
        "p.scales[side].at(0)",
        STORE,
    ),
    Fault("rotation without its sign", _LANE, "turn.first ? -sin[i] : sin[i]", "sin[i]", ROPE),
    Fault(
        "epsilon dropped",
        _LANE,
        "static_cast<double>(count) + eps",
        "static_cast<double>(count)",
        ROPE,
    ),
    Fault("partial rotary ignored", _LANE, "if (element >= rotary_dim) return {};", "", ROPE),
    Fault(
        "pairs turned without their sign", _PAIRS_TURN, "[0][j], -from_b)", "[0][j], from_b)", ROPE
    ),
    Fault(
        "pairs without epsilon",
        _PAIRS_ROW,
        ", p.eps[kInRange])",
        ", 0.0F)",
        ROPE,
    ),
    Fault("a lane's squares for a row's", _PAIRS_ROW, "return x + other;", "return x;", ROPE),
    Fault(
        "pairs that cancel are turned without the sign",
        _PAIRS_TURN,
        "fmaf(normed_a, cos, -from_b) +",
        "fmaf(normed_a, cos, from_b) +",
        ROPE,
    ),
    Fault("coefficients given up and not loaded", _PAIRS_KERNEL, "end = i + 1;", "", ROPE),
    Fault(
        "a unit's steps as those of the first",
        _PAIRS_KERNEL,
        "+ min(unit, p.longer_units)",
        "",
        ROPE,
    ),
    Fault(
        "rows worked on before they have come",
        _PAIRS_KERNEL,
        "cp_async_wait<kAhead>",
        "cp_async_wait<kAhead + 1>",
        ROPE,
    ),
    Fault(
        "rows of a group's first token alone",
        "kernels/fused/rope_pairs/stage.h",
        "step.token + (team >> p.step_heads_log2)",
        "step.token",
        ROPE,
    ),
    Fault(
        "counters that are not cleared",
        "kernels/fused/rope/token.h",
        "p.cleared[index] = 0;",
        "",
        "GpuRope.RandomCases",
    ),
    Fault(
        "pairs stored at the page's start",
        _PAIRS_KERNEL,
        "cache.row(notes.page, notes.place, 0)",
        "cache.row(notes.page, 0, 0)",
        ROPE,
    ),
    Fault(
        "merged without the sum of weights",
        "kernels/merge/row.h",
        "scale.weight(row.lse_of(partials[s])) / scale.sum",
        "scale.weight(row.lse_of(partials[s]))",
        MERGE,
    ),
)
