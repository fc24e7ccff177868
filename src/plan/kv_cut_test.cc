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

TEST(KvCut, FixedPiecesCoverTheRangeAndEndAtMultiples) {
  for (const std::int32_t split : {64, 128, 192, 1024, kMaxInt32 / 64 * 64}) {
    for_each_tile(split, [&](const PlanShape& shape, const RowTile& tile) {
      const std::int32_t pieces = num_pieces(shape, {}, tile);
      ASSERT_GE(pieces, 1);
      ASSERT_EQ(piece_begin(shape, tile, 0, pieces), tile.kv_begin);
      ASSERT_EQ(piece_begin(shape, tile, pieces, pieces), tile.kv_end);
      for (std::int32_t i = 1; i < pieces; ++i) {
        const std::int32_t at = piece_begin(shape, tile, i, pieces);
        ASSERT_EQ(at % split, 0);
        ASSERT_GT(at, piece_begin(shape, tile, i - 1, pieces));
        ASSERT_LT(at, tile.kv_end);
      }
    });
  }
}

TEST(KvCut, EvenPiecesCostAboutWhatIsAskedForAndAreNoCrumbs) {
  for_each_tile(0, [](const PlanShape& shape, const RowTile& tile) {
    const std::int32_t least = shape.costs.min_steps(tile.wide);
    EXPECT_EQ(num_pieces(shape, {}, tile), 1);
    for (const std::uint32_t cost : {1U, 100U, 333U, 700U, 5000U, kUncut - 1U}) {
      const std::int32_t pieces = num_pieces(shape, {cost}, tile);
      ASSERT_GE(pieces, 1);
      if (pieces == 1) continue;
      const std::int64_t of_piece = std::int64_t{tile.cost(shape.costs)} / pieces;
      ASSERT_GE(of_piece * 3 + 3, std::int64_t{cost} * 2);  // 1.5 of them are two, at least
      std::int32_t before = tile.kv_begin;
      for (std::int32_t i = 1; i <= pieces; ++i) {
        const std::int32_t at = piece_begin(shape, tile, i, pieces);
        const RowTile piece{.kv_begin = before, .kv_end = at};
        ASSERT_EQ(before, piece_begin(shape, tile, i - 1, pieces));
        ASSERT_TRUE(at % kDeviceTileKv == 0 || i == pieces);
        ASSERT_GE(piece.steps(), least);
        ASSERT_LE(piece.steps(), ceil_div(tile.steps(), pieces));
        before = at;
      }
      ASSERT_EQ(before, tile.kv_end);
    }
  });
}

TEST(KvCut, ManyPartialsAreJoinedInTwoSteps) {
  for (std::int32_t pieces = 1; pieces < 2000; ++pieces) {
    const JoinShape join(pieces);
    if (pieces <= kMostJoined) {
      EXPECT_EQ(num_combines(pieces), pieces > 1 ? 1 : 0);
      continue;
    }
    EXPECT_LE(join.size, kMostJoined);
    EXPECT_LT((join.groups - 1) * join.size, pieces);
    EXPECT_GE(join.groups * join.size, pieces);
    EXPECT_LE(num_combines(pieces), 1 + 2 * pieces / kMostJoined);
  }
}

TEST(KvCut, TheLongestContextFits) {
  const PlanShape shape = shape_of(256, 4);
  const RowTile tile{.row_end = 1, .kv_begin = 0, .kv_end = kMaxInt32, .wide = false};
  EXPECT_EQ(tile.steps(), 1 << 25);
  const auto overhead = static_cast<std::uint32_t>(shape.costs.narrow_overhead);
  EXPECT_EQ(shape.costs.narrow_step, 127);
  EXPECT_EQ(tile.cost(shape.costs), overhead + 127U * (1U << 25));  // in 32 bits
  EXPECT_EQ(num_pieces(shape, {1}, tile), 1 << 24);
  EXPECT_EQ(piece_begin(shape, tile, (1 << 24) - 1, 1 << 24), kMaxInt32 - 127);
  EXPECT_EQ(num_pieces(shape, {kUncut - 1}, tile), 1);
  const PlanShape fixed = shape_of(256, 4, 64);
  EXPECT_EQ(num_pieces(fixed, {}, tile), 1 << 25);
  EXPECT_EQ(piece_begin(fixed, tile, (1 << 25) - 1, 1 << 25), kMaxInt32 - 63);
  EXPECT_EQ(piece_begin(fixed, tile, 1 << 25, 1 << 25), kMaxInt32);
}

}  // namespace
}  // namespace hpcattn::plan
