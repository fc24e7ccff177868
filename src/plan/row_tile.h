// SPDX-License-Identifier: Apache-2.0
// What a GPU's planner knows of a batch: its lengths, its tiles of rows, and what each tile costs.
// constexpr, for the host and the device.
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/plan/device_layout.h"
#include "src/plan/rows.h"

namespace hpcattn::plan {

inline constexpr std::int32_t kMaxInt32 = 0x7fffffff;

/// For a >= 0, b > 0.
template <typename T>
constexpr T ceil_div(T a, T b) {
  return a / b + (a % b == 0 ? 0 : 1);
}

/// a / b for a >= 0, b > 0: half the instructions of a signed one.
constexpr std::int32_t divide(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b));
}

/// What a cta's work costs, in units of 100 clocks of a cta that shares its multiprocessor with
/// another. Their ratios alone matter: they decide how a mixed batch is cut.
struct TileCosts {
  // Of a piece: its task is read, Q loaded, O written.
  std::int32_t narrow_overhead = 0;
  std::int32_t wide_overhead = 0;
  // Of kDeviceTileKv tokens.
  std::int32_t narrow_step = 0;  // bound by reading K and V
  std::int32_t wide_step = 0;    // bound by arithmetic
  // More than a cut of a wide tile must save: its partial results are written, read and joined.
  // 0: other kernels' wide tiles, which are seldom cut.
  std::int32_t wide_join = 0;
  // Steps of a piece, at least: shorter ones cost more in starting and combining than they balance.
  std::int32_t min_narrow = 1;
  std::int32_t min_wide = 1;

  constexpr std::int32_t overhead(bool wide) const {
    return wide ? wide_overhead : narrow_overhead;
  }
  constexpr std::int32_t step(bool wide) const { return wide ? wide_step : narrow_step; }
  constexpr std::int32_t min_steps(bool wide) const { return wide ? min_wide : min_narrow; }
};

/// 64 tokens of bf16 at head dim 128 take 3.8k clocks narrow (32 KB at a 264th of an H200's
/// bandwidth) and 6.4k clocks wide (128 rows by mma.sync); others follow in proportion to bytes and
/// to rows times head dim. Starting and ending a wide tile takes some 14 us whatever its dtype, a
/// narrow one 3.
constexpr TileCosts tile_costs(int head_dim, int kv_bytes) {
  constexpr int kNarrowStep = 38;
  constexpr int kWideStep = 64;
  constexpr int kMinPieceSteps = 2;  // narrow ones
  constexpr int kMostStep = 127;     // a tile's steps are below 2^25: its cost fits 32 bits
  TileCosts costs{.narrow_overhead = 50, .wide_overhead = 280};
  costs.narrow_step = std::clamp(kNarrowStep * head_dim * kv_bytes / (128 * 2), 1, kMostStep);
  costs.wide_step =
      std::clamp(kWideStep * head_dim * tile_rows(head_dim).wide / (128 * 128), 1, kMostStep);
  costs.min_narrow = kMinPieceSteps;
  costs.min_wide =
      std::clamp(kMinPieceSteps * costs.narrow_step / costs.wide_step, 1, kMinPieceSteps);
  return costs;
}

/// Of Hopper's prefill kernel, whose cta has its multiprocessor to itself. 64 tokens of bf16 at
/// head dim 128 and 128 rows are 4.2 MFLOP, 1.6k clocks at three quarters of what the tensor cores
/// do; fp8 takes half. Tiles of few rows are bound by reading, as narrow ones are. The next tile's
/// products begin beside the end of the one before, so that starting and ending costs less. Cuts
/// that save up to some 30k clocks were measured, and gained nothing or lost 10 us
/// (docs/experiments/prefill.md); up to kWideJoin, 48k, a plan's own launch weighs as much.
constexpr TileCosts prefill_costs(int head_dim, int kv_bytes) {
  constexpr int kWideStep = 16;
  constexpr int kNarrowStep = 19;
  constexpr int kMostStep = 127;
  constexpr int kWideJoin = 480;
  TileCosts costs{.narrow_overhead = 30, .wide_overhead = 45, .min_narrow = 2, .min_wide = 2};
  costs.wide_join = std::max(kWideJoin * head_dim / 128, 1);
  costs.narrow_step = std::clamp(kNarrowStep * head_dim * kv_bytes / (128 * 2), 1, kMostStep);
  costs.wide_step = std::clamp(
      kWideStep * head_dim * kv_bytes * tile_rows(head_dim).wide / (128 * 2 * 128), 1, kMostStep);
  return costs;
}

/// What all tiles of a plan have in common.
struct PlanShape {
  Mask mask;
  TileRows rows;
  TileCosts costs;
  std::int32_t num_kv_heads = 1;
  std::int32_t group = 1;               // query heads of a KV head
  std::int32_t max_tokens = kMaxInt32;  // of a request, so that its rows fit an int32
  std::int32_t fixed_split = 0;         // KV tokens, a multiple of kDeviceTileKv; 0: balanced
};

/// One request, its lengths clamped to what can be: neither negative, nor over 2^31 rows.
struct Request {
  std::int32_t first_token = 0;
  std::int32_t num_tokens = 0;
  std::int32_t kv_len = 0;
};

/// Differs, most likely, for other lengths or another order of them.
constexpr std::uint32_t hash_of(std::int32_t i, const Request& request) {
  std::uint32_t hash = static_cast<std::uint32_t>(i) * 0x9e3779b9U;
  hash = (hash ^ static_cast<std::uint32_t>(request.num_tokens)) * 0x85ebca6bU;
  hash = (hash ^ (hash >> 15) ^ static_cast<std::uint32_t>(request.kv_len)) * 0xc2b2ae35U;
  return hash ^ (hash >> 13);
}

/// Where lengths are read.
struct Lengths {
  const std::int32_t* cu_seqlens_q = nullptr;  // [num_requests + 1]
  std::int64_t cu_seqlens_q_stride = 1;
  const std::int32_t* kv_lens = nullptr;  // [num_requests], or [num_requests + 1] if cumulative
  std::int64_t kv_lens_stride = 1;
  std::int32_t num_requests = 0;
  bool kv_cumulative = false;

  constexpr std::int64_t q_end(std::int64_t i) const {
    return cu_seqlens_q[i * cu_seqlens_q_stride];
  }
  constexpr std::int64_t kv_value(std::int64_t i) const { return kv_lens[i * kv_lens_stride]; }

  constexpr Request request(std::int64_t i, std::int32_t max_tokens) const {
    const std::int64_t first = q_end(i);
    const std::int64_t num_tokens = q_end(i + 1) - first;
    const std::int64_t kv = kv_cumulative ? kv_value(i + 1) - kv_value(i) : kv_value(i);
    constexpr std::int64_t kZero = 0;
    constexpr std::int64_t kMost = kMaxInt32;
    return {.first_token = static_cast<std::int32_t>(first),
            .num_tokens =
                static_cast<std::int32_t>(std::clamp(num_tokens, kZero, std::int64_t{max_tokens})),
            .kv_len = static_cast<std::int32_t>(std::clamp(kv, kZero, kMost))};
  }
};

/// A length that can not be, as FaultKind::kLength tells it.
struct LengthFault {
  std::int64_t which = 0;  // 0: cu_seqlens_q, 1: kv_lens or cu_seqlens_k
  std::int64_t index = 0;
  std::int64_t value = 0;
  std::int64_t limit = kMaxInt32;
};

/// Calls report(LengthFault) for what is wrong with request `i`.
template <typename Report>
constexpr void check_request(const Lengths& lengths, std::int64_t i, std::int32_t max_tokens,
                             const Report& report) {
  const std::int64_t first = lengths.q_end(i);
  const std::int64_t next = lengths.q_end(i + 1);
  if (i == 0 && first != 0) report({.which = 0, .index = 0, .value = first, .limit = 0});
  if (next < first) report({.which = 0, .index = i + 1, .value = next});
  if (next - first > max_tokens) {
    report({.which = 0, .index = i + 1, .value = next, .limit = first + max_tokens});
  }
  const std::int64_t kv_idx = lengths.kv_cumulative ? i + 1 : i;
  const std::int64_t least = lengths.kv_cumulative ? lengths.kv_value(i) : 0;
  const std::int64_t kv = lengths.kv_value(kv_idx);
  if (kv < least) report({.which = 1, .index = kv_idx, .value = kv});
}

/// Tiles of one KV head of a request.
constexpr std::int32_t num_row_tiles(const PlanShape& shape, std::int32_t num_tokens) {
  const std::int32_t rows = num_tokens * shape.group;
  if (rows <= shape.rows.narrow) return rows > 0 ? 1 : 0;
  return divide(rows - 1, shape.rows.wide) + 1;
}

/// Some rows of one KV head of a request, and the KV tokens that any of them sees.
struct RowTile {
  std::int32_t row_begin = 0;
  std::int32_t row_end = 0;
  std::int32_t kv_begin = 0;
  std::int32_t kv_end = 0;
  bool wide = false;

  constexpr std::int32_t first_step() const { return divide(kv_begin, kDeviceTileKv); }
  /// Steps of a kernel: they begin at multiples of kDeviceTileKv.
  constexpr std::int32_t steps() const {
    return kv_end > kv_begin ? divide(kv_end - 1, kDeviceTileKv) + 1 - first_step() : 0;
  }
  constexpr std::uint32_t cost(const TileCosts& costs) const {
    return static_cast<std::uint32_t>(costs.overhead(wide)) +
           static_cast<std::uint32_t>(steps()) * static_cast<std::uint32_t>(costs.step(wide));
  }
};

constexpr RowTile row_tile(const PlanShape& shape, const Request& request, std::int32_t index) {
  const std::int32_t rows = request.num_tokens * shape.group;
  RowTile tile;
  tile.wide = rows > shape.rows.narrow;
  std::int32_t first_token = 0;
  std::int32_t last_token = request.num_tokens - 1;
  tile.row_end = rows;
  if (tile.wide) {
    tile.row_begin = index * shape.rows.wide;
    tile.row_end =
        rows - tile.row_begin > shape.rows.wide ? tile.row_begin + shape.rows.wide : rows;
    first_token = divide(tile.row_begin, shape.group);
    last_token = divide(tile.row_end - 1, shape.group);
  }
  const std::int64_t before = std::int64_t{request.kv_len} - request.num_tokens;
  const KvRange seen =
      visible_to_any(shape.mask, before + first_token, before + last_token, request.kv_len);
  tile.kv_begin = static_cast<std::int32_t>(seen.begin);
  tile.kv_end = static_cast<std::int32_t>(seen.end);
  return tile;
}

}  // namespace hpcattn::plan
