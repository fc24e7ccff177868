// SPDX-License-Identifier: Apache-2.0
// Where the KV range of a row tile is cut, and how the results of its pieces are joined. Pure
// functions of whole numbers, so that all who need a cut compute it alike. constexpr, for the host
// and the device.
#pragma once

#include "src/plan/row_tile.h"

namespace hpcattn::plan {

/// No tile is cut.
inline constexpr std::uint32_t kUncut = 0xffffffff;

/// How the tiles of a batch are cut: at multiples of shape.fixed_split whatever the batch, or
/// evenly into pieces of about `piece_cost`.
struct CutRule {
  std::uint32_t piece_cost = kUncut;
};

/// In how many pieces a tile is cut; 1 for an empty one.
constexpr std::int32_t num_pieces(const PlanShape& shape, const CutRule& rule,
                                  const RowTile& tile) {
  if (shape.fixed_split > 0) {
    if (tile.kv_end <= tile.kv_begin) return 1;
    return divide(tile.kv_end - 1, shape.fixed_split) + 1 -
           divide(tile.kv_begin, shape.fixed_split);
  }
  if (rule.piece_cost == kUncut) return 1;
  // Cost over piece_cost, rounded, without an overflow.
  const std::uint32_t cost = tile.cost(shape.costs);
  const std::uint32_t whole = cost / rule.piece_cost;
  const std::uint32_t rest = cost - whole * rule.piece_cost;
  const std::uint32_t pieces = whole + (rest >= rule.piece_cost - rest ? 1U : 0U);
  const std::int32_t most = divide(tile.steps(), shape.costs.min_steps(tile.wide));
  return std::max(static_cast<std::int32_t>(std::min(pieces, static_cast<std::uint32_t>(most))), 1);
}

/// Where piece `i` of `pieces` begins; that of piece `pieces` is the tile's end.
constexpr std::int32_t piece_begin(const PlanShape& shape, const RowTile& tile, std::int32_t i,
                                   std::int32_t pieces) {
  if (i == 0) return tile.kv_begin;
  if (i == pieces) return tile.kv_end;
  if (shape.fixed_split > 0) {
    return (divide(tile.kv_begin, shape.fixed_split) + i) * shape.fixed_split;
  }
  // Whole and rest apart: their products stay within int32.
  const std::int32_t whole = divide(tile.steps(), pieces);
  const std::int32_t rest = tile.steps() - whole * pieces;
  return (tile.first_step() + whole * i + std::min(rest, i)) * kDeviceTileKv;
}

/// Partial results that one combine joins, at most: more are joined in two steps, since one cta
/// reads them one after the other. A final step may have more.
inline constexpr std::int32_t kMostJoined = 16;

/// How the partials of a tile in `pieces` are joined: by `groups` combines of `size` each (the last
/// may have fewer) and one more, or by that one alone.
struct JoinShape {
  std::int32_t groups = 0;
  std::int32_t size = 0;

  constexpr explicit JoinShape(std::int32_t pieces) {
    if (pieces <= kMostJoined) return;
    groups = divide(pieces - 1, kMostJoined) + 1;
    size = divide(pieces - 1, groups) + 1;
    groups = divide(pieces - 1, size) + 1;
  }
};

/// Combines of a tile in `pieces`.
constexpr std::int32_t num_combines(std::int32_t pieces) {
  return pieces == 1 ? 0 : 1 + JoinShape(pieces).groups;
}

}  // namespace hpcattn::plan
