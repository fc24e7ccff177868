// SPDX-License-Identifier: Apache-2.0
// What of Hopper's prefill kernel is arithmetic: its shared memory, and the order of the ring's
// items.
#include <gtest/gtest.h>

#include <set>

#include "kernels/sm90/prefill/config.h"
#include "kernels/sm90/prefill/tiles.h"
#include "src/cuda/attention.h"
#include "src/ops/support.h"

namespace hpcattn {
namespace {

constexpr std::int64_t kBytesPerCta = std::int64_t{227} * 1024;

PrefillSpec spec_of(std::int64_t head_dim, std::int64_t page_size, DType dtype = DType::kBFloat16) {
  AttentionGroup group;
  group.head_dim = static_cast<int>(head_dim);
  group.q_dtype = group.kv_dtype = dtype;
  group.page_size = static_cast<int>(page_size);
  return cuda::prefill_spec(group, {}, kBytesPerCta);
}

void expect_parts_fit(const PrefillSpec& spec) {
  const PrefillLayout layout = prefill_layout(spec);
  SCOPED_TRACE(cuda::variant_of(spec).name);
  EXPECT_TRUE(prefill_takes(spec));
  EXPECT_EQ(layout.values_offset % PrefillLayout::kAlignment, 0);
  EXPECT_EQ(layout.slots_offset % PrefillLayout::kAlignment, 0);
  EXPECT_EQ(layout.slot_bytes % PrefillLayout::kAlignment, 0);
  EXPECT_EQ(layout.q_bytes % PrefillLayout::kAlignment, 0);
  EXPECT_EQ(layout.tasks_offset % 16, 0);
  EXPECT_EQ(layout.barriers_offset % 8, 0);
  EXPECT_GE(layout.slots, 4);
  EXPECT_LE(layout.slots_offset + layout.slots * layout.slot_bytes, layout.tasks_offset);
  EXPECT_LE(layout.flag_offset, layout.shared_bytes);
  EXPECT_LE(layout.shared_bytes, kBytesPerCta);
  EXPECT_EQ(layout.rows, layout.warpgroups * kWarpgroupRows);
  EXPECT_EQ(spec.page_size % layout.box_tokens, 0);
  EXPECT_EQ(layout.tile_kv % layout.box_tokens, 0);
  EXPECT_EQ(layout.lines * layout.line_bytes,
            spec.attention.head_dim * static_cast<int>(size_bytes(spec.attention.kv_dtype)));
  EXPECT_LE(kWarpgroupThreads *
                (PrefillLayout::kLoadRegisters + layout.warpgroups * layout.compute_registers() +
                 (layout.transposes ? layout.transpose_registers() : 0)),
            layout.threads() * layout.launch_registers());
  if (!layout.transposes) return;
  EXPECT_TRUE(layout.value_line_bytes == 64 || layout.value_line_bytes == 128);
  EXPECT_EQ(layout.value_line_bytes * spec.attention.head_dim, layout.slot_bytes);
}

TEST(PrefillLayout, PartsFollowEachOtherAndFit) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat8E4M3}) {
    for (const std::int64_t head_dim : {64, 128, 192, 256}) {
      for (const std::int64_t page_size : ops::hopper_page_sizes()) {
        expect_parts_fit(spec_of(head_dim, page_size, dtype));
      }
    }
  }
}

TEST(PrefillLayout, RingsAreAsLongAsTheyCanBe) {
  const auto slots = [](int head_dim, DType dtype) {
    return prefill_layout(spec_of(head_dim, 64, dtype)).slots;
  };
  EXPECT_EQ(slots(64, DType::kBFloat16), 8);
  EXPECT_EQ(slots(128, DType::kBFloat16), 5);
  EXPECT_EQ(slots(192, DType::kBFloat16), 7);
  EXPECT_EQ(slots(256, DType::kBFloat16), 5);
  for (const int head_dim : {64, 128, 192, 256}) EXPECT_EQ(slots(head_dim, DType::kFloat8E4M3), 8);
}

TEST(PrefillLayout, SwizzlesUseEachPlaceOnce) {
  // The units of one column of eight lines lie in unlike groups of banks.
  for (const int line_bytes : {64, 128}) {
    for (int unit = 0; unit < line_bytes / 16; ++unit) {
      std::set<int> banks;
      for (int line = 0; line < 8; ++line) {
        const int place = swizzled_unit(line_bytes, line, unit);
        EXPECT_LT(place, line_bytes / 16);
        banks.insert((line * line_bytes + place * 16) % 128);
      }
      EXPECT_EQ(banks.size(), 8U);
    }
  }
}

TEST(PrefillLayout, WhatItDoesNotTake) {
  const PrefillSpec spec = spec_of(128, 64);
  EXPECT_TRUE(prefill_takes(spec));
  const auto takes = [&](auto change) {
    PrefillSpec other = spec;
    change(other);
    return prefill_takes(other);
  };
  EXPECT_TRUE(takes([](PrefillSpec& s) { s.page_size = 0; }));
  EXPECT_FALSE(takes([](PrefillSpec& s) { s.page_size = 24; }));
  EXPECT_FALSE(takes([](PrefillSpec& s) { s.page_size = 96; }));
  EXPECT_FALSE(takes([](PrefillSpec& s) { s.attention.head_dim = 80; }));
  EXPECT_FALSE(takes([](PrefillSpec& s) { s.attention.head_dim = 96; }));
  EXPECT_FALSE(takes([](PrefillSpec& s) { s.attention.kv_dtype = DType::kFloat8E4M3; }));
  EXPECT_FALSE(takes([](PrefillSpec& s) { s.attention.q_dtype = DType::kFloat8E4M3; }));
  EXPECT_TRUE(takes(
      [](PrefillSpec& s) { s.attention.q_dtype = s.attention.kv_dtype = DType::kFloat8E4M3; }));
  EXPECT_FALSE(takes([](PrefillSpec& s) {
    s.attention.q_dtype = DType::kFloat8E4M3, s.attention.kv_dtype = DType::kFloat8E5M2;
  }));
  EXPECT_FALSE(takes([](PrefillSpec& s) { s.attention.unaligned_kv = true; }));
  EXPECT_FALSE(takes([](PrefillSpec& s) { s.attention.checked = true; }));
  EXPECT_FALSE(takes([](PrefillSpec& s) { s.attention.shared_budget = 100 * 1024; }));
}

TEST(PrefillTiles, CoverTheRangeAndUseEachItemOnce) {
  constexpr PrefillLayout kLayout = prefill_layout({.page_size = 32});
  for (int begin : {0, 1, 31, 32, 100, 1000}) {
    for (int length : {0, 1, 28, 97, 128, 129, 1000}) {
      plan::Task task;
      task.kv_begin = begin;
      task.kv_end = begin + length;
      const TileItems<kLayout> tiles(task);
      EXPECT_LE(tiles.first_token, begin);
      EXPECT_EQ(tiles.first_token % kLayout.box_tokens, 0);
      EXPECT_GE(tiles.token(tiles.count), length > 0 ? task.kv_end : begin / 32 * 32);
      std::set<int> items;
      for (int tile = 0; tile < tiles.count; ++tile) {
        EXPECT_LT(tiles.token(tile), task.kv_end);
        items.insert(tiles.key(tile));
        items.insert(tiles.value(tile));
        EXPECT_LT(tiles.key(tile), tiles.value(tile));
        if (tile > 0) {
          EXPECT_EQ(tiles.key(tile) + 1, tiles.value(tile - 1));
        }
      }
      EXPECT_EQ(static_cast<int>(items.size()), tiles.items());
      if (tiles.count > 0) {
        EXPECT_EQ(*items.rbegin(), tiles.items() - 1);
      }
    }
  }
}

}  // namespace
}  // namespace hpcattn
