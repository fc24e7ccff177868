// SPDX-License-Identifier: Apache-2.0
#include "src/plan/kv_cut.h"

#include <gtest/gtest.h>

namespace hpcattn::plan {
namespace {

PlanShape shape_of(int head_dim, int kv_bytes, std::int32_t fixed_split = 0) {
  return {.mask = {},
          .rows = tile_rows(head_dim),
          .costs = tile_costs(head_dim, kv_bytes),
          .fixed_split = fixed_split};
}

/// Calls check(shape, tile) for tiles of every length to 20 steps, aligned and not, narrow and
/// wide.
template <typename Check>
void for_each_tile(std::int32_t fixed_split, const Check& check) {
  for (const int head_dim : {64, 128, 256}) {
    for (const int kv_bytes : {1, 2}) {
      const PlanShape shape = shape_of(head_dim, kv_bytes, fixed_split);
      for (const bool wide : {false, true}) {
        for (const std::int32_t begin : {0, 1, 63, 64, 1000, 4096}) {
          for (std::int32_t length = 0; length <= 20 * kDeviceTileKv;
               length += length < 70 ? 1 : 13) {
            check(shape,
                  RowTile{.row_end = 1, .kv_begin = begin, .kv_end = begin + length, .wide = wide});
          }
        }
      }
    }
  }
}

TEST(KvCut, StepsCoverTheRange) {
  for_each_tile(0, [](const PlanShape&, const RowTile& tile) {
    ASSERT_LE(tile.first_step() * kDeviceTileKv, tile.kv_begin);
    ASSERT_GE((tile.first_step() + tile.steps()) * kDeviceTileKv,
              tile.kv_end > tile.kv_begin ? tile.kv_end : 0);
    ASSERT_EQ(tile.steps() == 0, tile.kv_end == tile.kv_begin);
  });
}

TEST(KvCut, ABoundaryOfSharesGrowsWithItsOffsetAndLeavesNoCrumbs) {
  for_each_tile(0, [](const PlanShape& shape, const RowTile& tile) {
    const TileCosts& costs = shape.costs;
    const std::int32_t least = costs.min_steps(tile.wide);
    const auto share = static_cast<std::uint32_t>(costs.min_share());
    std::int32_t previous = 0;
    ASSERT_EQ(steps_before(costs, tile, 0), 0);
    for (std::uint32_t offset = 0; offset < tile.cost(costs); ++offset) {
      const std::int32_t cut = steps_before(costs, tile, offset);
      ASSERT_GE(cut, previous);
      previous = cut;
      ASSERT_TRUE(cut == 0 || cut == tile.steps() || (cut >= least && tile.steps() - cut >= least));
      // The next worker's boundary leaves this one a whole piece.
      if (offset + share >= tile.cost(costs)) continue;
      const std::int32_t next = steps_before(costs, tile, offset + share);
      ASSERT_TRUE(next - cut >= least || (cut == next && (cut == 0 || cut == tile.steps())));
      // Where it is no crumb, the share is met within half a step.
      if (cut == 0 || cut == tile.steps()) continue;
      const std::int64_t cost = costs.overhead + std::int64_t{cut} * costs.step(tile.wide);
      ASSERT_LE(std::abs(2 * (cost - std::int64_t{offset})), costs.step(tile.wide));
    }
  });
}

TEST(KvCut, FixedPiecesCoverTheRangeAndEndAtMultiples) {
  for (const std::int32_t split : {64, 128, 192, 1024, kMaxInt32 / 64 * 64}) {
    for_each_tile(split, [&](const PlanShape& shape, const RowTile& tile) {
      const std::int32_t pieces = num_pieces(shape, tile);
      ASSERT_GE(pieces, 1);
      ASSERT_EQ(piece_begin(shape, tile, 0), tile.kv_begin);
      ASSERT_EQ(piece_begin(shape, tile, pieces), tile.kv_end);
      for (std::int32_t i = 1; i < pieces; ++i) {
        const std::int32_t at = piece_begin(shape, tile, i);
        ASSERT_EQ(at % split, 0);
        ASSERT_GT(at, piece_begin(shape, tile, i - 1));
        ASSERT_LT(at, tile.kv_end);
      }
    });
  }
}

TEST(KvCut, FixedPiecesBeforeAnOffsetAreThoseThatBeginBeforeIt) {
  for (const std::int32_t split : {64, 192, 1024}) {
    for_each_tile(split, [&](const PlanShape& shape, const RowTile& tile) {
      const std::int32_t pieces = num_pieces(shape, tile);
      for (std::uint32_t offset = 0; offset < tile.cost(shape.costs); offset += 3) {
        std::int32_t before = offset > 0 ? 1 : 0;
        for (std::int32_t i = 1; i < pieces; ++i) {
          const std::int32_t steps =
              piece_begin(shape, tile, i) / kDeviceTileKv - tile.first_step();
          const std::int64_t begins =
              shape.costs.overhead + std::int64_t{steps} * shape.costs.step(tile.wide);
          if (begins < std::int64_t{offset}) ++before;
        }
        ASSERT_EQ(pieces_before(shape, tile, offset), before) << offset << " of " << pieces;
      }
    });
  }
}

TEST(KvCut, EvenPiecesAreNoShorterThanTheShortest) {
  for_each_tile(0, [](const PlanShape& shape, const RowTile& tile) {
    const std::int32_t pieces = num_pieces(shape, tile);
    const std::int32_t least = shape.costs.min_steps(tile.wide);
    ASSERT_EQ(even_steps_before(tile, 0, pieces), 0);
    ASSERT_EQ(even_steps_before(tile, pieces, pieces), tile.steps());
    for (std::int32_t i = 0; i < pieces && tile.steps() >= least; ++i) {
      const std::int32_t steps =
          even_steps_before(tile, i + 1, pieces) - even_steps_before(tile, i, pieces);
      ASSERT_GE(steps, least);
      ASSERT_LT(steps, 2 * least);
    }
  });
}

TEST(KvCut, TheLongestContextFits) {
  const PlanShape shape = shape_of(256, 4);
  const RowTile tile{.row_end = 1, .kv_begin = 0, .kv_end = kMaxInt32, .wide = false};
  EXPECT_EQ(tile.steps(), 1 << 25);
  const auto overhead = static_cast<std::uint32_t>(shape.costs.overhead);
  EXPECT_EQ(shape.costs.narrow_step, 127);
  EXPECT_EQ(tile.cost(shape.costs), overhead + 127U * (1U << 25));  // in 32 bits
  EXPECT_EQ(steps_before(shape.costs, tile, tile.cost(shape.costs) - 1), tile.steps());
  EXPECT_EQ(steps_before(shape.costs, tile, overhead + 127U * (1U << 24)), 1 << 24);
  const PlanShape fixed = shape_of(256, 4, 64);
  EXPECT_EQ(num_pieces(fixed, tile), 1 << 25);
  EXPECT_EQ(piece_begin(fixed, tile, (1 << 25) - 1), kMaxInt32 - 63);
  EXPECT_EQ(piece_begin(fixed, tile, 1 << 25), kMaxInt32);
  EXPECT_EQ(pieces_before(fixed, tile, tile.cost(fixed.costs) - 1), 1 << 25);
}

}  // namespace
}  // namespace hpcattn::plan
