// SPDX-License-Identifier: Apache-2.0
// Where the KV range of a row tile is cut. Monotone functions of whole numbers, which both
// neighbours of a cut compute alike, so that pieces cover the range exactly once. constexpr, for
// the host and the device.
#pragma once

#include "src/plan/row_tile.h"

namespace hpcattn::plan {

/// How the tiles of a batch are cut.
enum class CutMode : std::int32_t {
  kBalanced,  // so that all workers end together, and as seldom as that allows
  kFixed,     // at multiples of a length, whatever the batch
};

/// Shares: the steps of a tile that lie before a boundary at `offset` of its cost, in 0 .. steps. 0
/// is the tile's start, all of them its end: a boundary that would leave a crumb moves to an edge.
/// Grows with the offset; offsets min_share() apart give the same edge or cuts min_steps() apart.
constexpr std::int32_t steps_before(const TileCosts& costs, const RowTile& tile,
                                    std::uint32_t offset) {
  const std::int32_t steps = tile.steps();
  const std::int32_t least = costs.min_steps(tile.wide);
  const auto step_cost = static_cast<std::uint32_t>(costs.step(tile.wide));
  const auto overhead = static_cast<std::uint32_t>(costs.overhead);
  if (steps < 2 * least) return offset < tile.cost(costs) / 2 ? 0 : steps;
  if (offset < overhead + static_cast<std::uint32_t>(least) * step_cost - step_cost / 2) return 0;
  const auto before = static_cast<std::int32_t>((offset - overhead + step_cost / 2) / step_cost);
  return before > steps - least ? steps : before;
}

/// In how many even or fixed pieces a tile is cut; 1 for an empty one.
constexpr std::int32_t num_pieces(const PlanShape& shape, const RowTile& tile) {
  if (shape.fixed_split == 0) {
    return std::max(divide(tile.steps(), shape.costs.min_steps(tile.wide)), 1);
  }
  if (tile.kv_end <= tile.kv_begin) return 1;
  return divide(tile.kv_end - 1, shape.fixed_split) + 1 - divide(tile.kv_begin, shape.fixed_split);
}

/// The steps before piece `i` of `pieces` even ones.
constexpr std::int32_t even_steps_before(const RowTile& tile, std::int32_t i, std::int32_t pieces) {
  // Whole and rest apart: their products with fewer pieces than workers stay within int32.
  const std::int32_t whole = divide(tile.steps(), pieces);
  const std::int32_t rest = tile.steps() - whole * pieces;
  return whole * i + divide(rest * i, pieces);
}

/// Fixed: where piece `i` begins; that of piece num_pieces() is the tile's end.
constexpr std::int32_t piece_begin(const PlanShape& shape, const RowTile& tile, std::int32_t i) {
  const std::int64_t at =
      (std::int64_t{divide(tile.kv_begin, shape.fixed_split)} + i) * shape.fixed_split;
  return i == 0 ? tile.kv_begin
                : static_cast<std::int32_t>(std::min<std::int64_t>(at, tile.kv_end));
}

/// Fixed: the pieces of a tile that begin before `offset` of its cost.
constexpr std::int32_t pieces_before(const PlanShape& shape, const RowTile& tile,
                                     std::uint32_t offset) {
  if (offset == 0) return 0;
  const auto overhead = static_cast<std::uint32_t>(shape.costs.overhead);
  if (offset <= overhead) return 1;
  // A cut after `s` steps lies before the offset where s * step_cost < offset - overhead.
  const auto step_cost = static_cast<std::uint32_t>(shape.costs.step(tile.wide));
  const auto steps = static_cast<std::int32_t>((offset - overhead - 1) / step_cost);
  const std::int64_t last_cut = std::min<std::int64_t>(
      (std::int64_t{tile.first_step()} + steps) * kDeviceTileKv, std::int64_t{tile.kv_end} - 1);
  if (last_cut < tile.kv_begin) return 1;
  return divide(static_cast<std::int32_t>(last_cut), shape.fixed_split) + 1 -
         divide(tile.kv_begin, shape.fixed_split);
}

}  // namespace hpcattn::plan
