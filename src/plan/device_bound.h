// SPDX-License-Identifier: Apache-2.0
// How large the plan of a GPU and its partial results can become: pure arithmetic of the largest
// batch.
#pragma once

#include "src/plan/balance_input.h"

namespace hpcattn::plan {

/// The largest batch.
struct DeviceCapacity {
  std::int64_t max_requests = 0;
  std::int64_t max_tokens = 0;  // query tokens
  std::int64_t max_kv_len = 0;  // KV tokens of one request; used with fixed_split alone
  std::int64_t num_workers = 0;
};

struct DeviceBound {
  std::int64_t tasks = 0;
  std::int64_t combines = 0;
  std::int64_t partial_rows = 0;
  std::int64_t words = 0;  // of the plan's tensor
};

/// Counts past this are all alike: nothing holds them.
inline constexpr std::int64_t kBoundLimit = std::int64_t{1} << 52;

/// a * b for a, b >= 0, at most kBoundLimit.
constexpr std::int64_t bounded_product(std::int64_t a, std::int64_t b) {
  return b > 0 && a > kBoundLimit / b ? kBoundLimit : std::min(a * b, kBoundLimit);
}

/// Tiles: request i of r_i > 0 rows has at most 1 + (r_i - 1) / wide of them, a narrow one among
/// them; summed, max_requests + rows / wide, and no request without a token has any.
/// Cut tiles of a balanced plan: alike, together at most most_rounds() pieces a worker; else of a
/// cost of 1.5 pieces or more each, rounded, at most 4/3 of kPiecesPerWorker a worker, which is
/// less. Fixed: of [a, b) with b <= max_kv_len, ceil(b / split) - floor(a / split) pieces.
constexpr DeviceBound device_bound(const PlanShape& shape, const DeviceCapacity& capacity) {
  const std::int64_t rows = bounded_product(capacity.max_tokens, shape.group);
  const std::int64_t tiles_of_head =
      rows / shape.rows.wide + std::min(capacity.max_requests, capacity.max_tokens);
  const std::int64_t tiles = bounded_product(tiles_of_head, shape.num_kv_heads);
  DeviceBound bound;
  if (shape.fixed_split > 0) {
    const std::int64_t pieces =
        std::max<std::int64_t>(ceil_div(capacity.max_kv_len, std::int64_t{shape.fixed_split}), 1);
    bound.tasks = bounded_product(tiles, pieces);
    const auto most = static_cast<std::int32_t>(std::min<std::int64_t>(pieces, kMaxInt32));
    bound.combines = bounded_product(tiles, num_combines(most));
    bound.partial_rows =
        pieces > 1 ? bounded_product(bounded_product(rows, shape.num_kv_heads), pieces) : 0;
  } else {
    static_assert(4 * kPiecesPerWorker <= 3 * most_rounds(true));
    const std::int64_t pieces = most_rounds(false) * capacity.num_workers;
    const std::int64_t wide_pieces = most_rounds(true) * capacity.num_workers;
    bound.tasks = tiles + pieces;
    // Two pieces or more have a combine, and each kMostJoined / 2 or more of over kMostJoined one
    // more.
    bound.combines = std::min(tiles, pieces / 2) + 2 * pieces / kMostJoined;
    bound.partial_rows =
        std::max(bounded_product(pieces, std::min<std::int64_t>(rows, shape.rows.narrow)),
                 bounded_product(wide_pieces, std::min<std::int64_t>(rows, shape.rows.wide)));
  }
  const DeviceLayout layout{.num_requests = capacity.max_requests};
  // The tensor's end is rounded down to 16 bytes, so its size is up.
  bound.words = layout.task(bound.tasks) + bound.combines * kCombineWords;
  return bound;
}

}  // namespace hpcattn::plan
