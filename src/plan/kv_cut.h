// SPDX-License-Identifier: Apache-2.0
// Where the KV range of a row tile is cut. Monotone functions of whole numbers, which both
// neighbours of a cut compute alike, so that pieces cover the range exactly once. constexpr, for
// the host and the device.
#pragma once

#include "src/plan/row_tile.h"

namespace hpcattn::plan {

/// How the tiles of a batch are cut.
enum class CutMode : std::int32_t {
  kShares,  // the batch's cost in equal shares, one a worker: cuts where a share ends within a tile
  kEven,    // few tiles: each in even pieces, one a worker
  kFixed,   // at multiples of a length, whatever the batch
};

/// Shares: the steps of a tile that lie before a boundary at `offset` of its cost, in 0 .. steps. 0
/// is the tile's start, all of them its end: a boundary that would leave a crumb moves to an edge.
/// Grows with the offset; offsets min_share() apart give the same edge or cuts min_steps() apart.
constexpr std::int32_t steps_before(const TileCosts& costs, const RowTile& tile,
                                    std::int64_t offset) {
  const std::int32_t steps = tile.steps();
  const std::int32_t least = costs.min_steps(tile.wide);
  if (steps < 2 * least) return 2 * offset < tile.cost(costs) ? 0 : steps;
  const std::int64_t step_cost = costs.step(tile.wide);
  const std::int64_t past_start = offset - costs.overhead + step_cost / 2;
  if (past_start < least * step_cost) return 0;
  const std::int64_t before = past_start / step_cost;
  return before > steps - least ? steps : static_cast<std::int32_t>(before);
}

/// kEven and kFixed: in how many pieces a tile is cut; 1 for an empty one.
constexpr std::int32_t num_pieces(const PlanShape& shape, const RowTile& tile) {
  if (shape.fixed_split == 0) {
    return std::max(tile.steps() / shape.costs.min_steps(tile.wide), 1);
  }
  if (tile.kv_end <= tile.kv_begin) return 1;
  return (tile.kv_end - 1) / shape.fixed_split + 1 - tile.kv_begin / shape.fixed_split;
}

/// Where piece `i` of `pieces` begins; that of piece `pieces` is the tile's end.
constexpr std::int32_t piece_begin(const PlanShape& shape, const RowTile& tile, std::int32_t i,
                                   std::int32_t pieces) {
  if (i == 0) return tile.kv_begin;
  if (i == pieces) return tile.kv_end;
  if (shape.fixed_split == 0) {
    const std::int64_t step = std::int64_t{tile.steps()} * i / pieces;
    return (tile.first_step() + static_cast<std::int32_t>(step)) * kDeviceTileKv;
  }
  return (tile.kv_begin / shape.fixed_split + i) * shape.fixed_split;
}

/// kFixed: the pieces of a tile that begin before `offset` of its cost.
constexpr std::int32_t pieces_before(const PlanShape& shape, const RowTile& tile,
                                     std::int64_t offset) {
  if (offset <= 0) return 0;
  const std::int64_t past_start = offset - shape.costs.overhead;
  if (past_start <= 0) return 1;
  // A cut after `s` steps lies before the offset where s * step_cost < past_start.
  const std::int64_t steps = std::min<std::int64_t>(
      ceil_div(past_start, std::int64_t{shape.costs.step(tile.wide)}) - 1, tile.steps());
  const std::int64_t end = std::min<std::int64_t>((tile.first_step() + steps) * kDeviceTileKv,
                                                  std::int64_t{tile.kv_end} - 1);
  return std::max(
      1 + static_cast<std::int32_t>(end / shape.fixed_split) - tile.kv_begin / shape.fixed_split,
      1);
}

}  // namespace hpcattn::plan
