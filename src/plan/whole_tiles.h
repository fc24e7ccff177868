// SPDX-License-Identifier: Apache-2.0
// Whether a batch can do without a plan: where no tile of rows would be cut, the prefill kernel
// finds its tasks by itself, and a launch is spared. The host knows sizes alone, so it asks whether
// none would be for any lengths of these sizes. Plain C++, that the host tests.
#pragma once

#include "src/plan/piece_cost.h"

namespace hpcattn::plan {

struct BatchSizes {
  std::int64_t num_requests = 0;
  std::int64_t num_tokens = 0;  // query tokens
  std::int64_t most_kv = 0;     // KV tokens of one request
};

/// The dearest tile that there may be.
constexpr std::int64_t dearest_tile(const PlanShape& shape, const BatchSizes& sizes) {
  std::int64_t steps = ceil_div<std::int64_t>(sizes.most_kv, kDeviceTileKv);
  if (shape.mask.window > 0) {
    const std::int64_t ahead = shape.mask.causal ? 0 : shape.mask.window;
    const std::int64_t seen = shape.mask.window + ahead + shape.rows.wide / shape.group + 1;
    steps = std::min(steps, seen / kDeviceTileKv + 2);
  }
  return shape.costs.wide_overhead + steps * shape.costs.wide_step;
}

/// What each of `num_workers` has to do at least. A causal request sees its own tokens: the sum of
/// squares of all lengths is least where they are alike.
constexpr std::int64_t least_share(const PlanShape& shape, const BatchSizes& sizes,
                                   std::int64_t num_workers) {
  const double rows = static_cast<double>(sizes.num_tokens) * shape.group;
  const double tiles = rows / shape.rows.wide * shape.num_kv_heads;
  double cost = tiles * shape.costs.wide_overhead;
  if (shape.mask.causal && shape.mask.window == 0) {
    const std::int64_t each = sizes.num_tokens / sizes.num_requests;
    const double seen = 0.5 * static_cast<double>(each);
    cost += tiles * seen / kDeviceTileKv * shape.costs.wide_step;
  }
  return static_cast<std::int64_t>(cost / static_cast<double>(num_workers));
}

/// `shape`: with the prefill kernel's costs, of which one cta is a worker.
constexpr bool whole_tiles_suffice(const PlanShape& shape, const BatchSizes& sizes,
                                   std::int64_t num_workers) {
  if (sizes.num_requests < 1) return false;
  return stay_whole(shape, dearest_tile(shape, sizes), least_share(shape, sizes, num_workers));
}

}  // namespace hpcattn::plan
