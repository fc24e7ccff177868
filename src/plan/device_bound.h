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
/// Shares: a boundary cuts at most one tile and adds one task; the first and the last of the
/// num_workers + 1 boundaries cut nothing. A cut has at most twice its tile's rows of partials to
/// itself: the piece that it begins, and the one that the first cut of a tile ends.
/// Even: all tasks together are at most num_workers.
/// Fixed: of [a, b) with b <= max_kv_len, ceil(b / split) - floor(a / split) pieces.
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
    bound.combines = pieces > 1 ? tiles : 0;
    bound.partial_rows =
        pieces > 1 ? bounded_product(bounded_product(rows, shape.num_kv_heads), pieces) : 0;
  } else {
    bound.tasks = tiles + capacity.num_workers;
    bound.combines = std::min(tiles, capacity.num_workers);
    bound.partial_rows =
        bounded_product(2 * capacity.num_workers, std::min<std::int64_t>(rows, shape.rows.wide));
  }
  const DeviceLayout layout{.num_requests = capacity.max_requests,
                            .num_workers = capacity.num_workers};
  // The tensor's end is rounded down to 16 bytes, so its size is up.
  bound.words = layout.task(bound.tasks) + bound.combines * kCombineWords;
  return bound;
}

}  // namespace hpcattn::plan
