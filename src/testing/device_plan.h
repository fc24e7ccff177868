// SPDX-License-Identifier: Apache-2.0
// Batches planned by a GPU's planner on the host, and what must hold of every plan of it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "src/plan/device_bound.h"
#include "src/plan/serial_cta.h"

namespace hpcattn::testkit {

struct PlanBatch {
  std::vector<std::int32_t> cu_seqlens_q{0};
  std::vector<std::int32_t> kv_lens;

  PlanBatch& add(std::int32_t num_tokens, std::int32_t kv_len, int times = 1) {
    for (int i = 0; i < times; ++i) {
      cu_seqlens_q.push_back(cu_seqlens_q.back() + num_tokens);
      kv_lens.push_back(kv_len);
    }
    return *this;
  }
  std::int32_t num_requests() const { return static_cast<std::int32_t>(kv_lens.size()); }
};

inline plan::PlanShape shape_of(int num_kv_heads, int group, int head_dim = 128, int kv_bytes = 2) {
  return {.mask = {},
          .rows = plan::tile_rows(head_dim),
          .costs = plan::tile_costs(head_dim, kv_bytes),
          .num_kv_heads = num_kv_heads,
          .group = group,
          .max_tokens = plan::kMaxInt32 / group};
}

struct DevicePlan {
  plan::Header header;
  std::vector<plan::Task> tasks;
  std::vector<plan::Combine> combines;
  Fault fault;
};

struct BalanceOptions {
  int num_workers = 264;
  int num_threads = 7;
  std::int64_t words = -1;     // as the bound says
  bool kv_cumulative = false;  // the batch's kv_lens are cumulative
  plan::PrefillCrew prefill;
};

inline plan::DeviceBound bound_of(const PlanBatch& batch, const plan::PlanShape& shape,
                                  int num_workers) {
  const std::int32_t longest =
      batch.kv_lens.empty() ? 0 : *std::max_element(batch.kv_lens.begin(), batch.kv_lens.end());
  return plan::device_bound(shape, {.max_requests = batch.num_requests(),
                                    .max_tokens = batch.cu_seqlens_q.back(),
                                    .max_kv_len = longest,
                                    .num_workers = num_workers});
}

template <typename T>
T read(const std::int32_t* words) {
  T value;
  std::memcpy(static_cast<void*>(&value), words, sizeof(value));
  return value;
}

inline DevicePlan balance(const PlanBatch& batch, const plan::PlanShape& shape,
                          const BalanceOptions& options = {}) {
  const plan::DeviceBound bound = bound_of(batch, shape, options.num_workers);
  const std::int64_t size = options.words < 0 ? bound.words : options.words;
  constexpr std::int32_t kPoison = -77;
  constexpr std::size_t kGuard = 64;
  std::vector<std::int32_t> words(static_cast<std::size_t>(size) + kGuard, kPoison);
  plan::BalanceInput in;
  in.lengths = {.cu_seqlens_q = batch.cu_seqlens_q.data(),
                .kv_lens = batch.kv_lens.data(),
                .num_requests = batch.num_requests() - (options.kv_cumulative ? 1 : 0),
                .kv_cumulative = options.kv_cumulative};
  in.shape = shape;
  in.layout = {.num_requests = in.lengths.num_requests, .words = size};
  in.num_workers = options.num_workers;
  in.prefill = options.prefill;
  in.plan = words.data();
  const auto memory = std::make_unique<plan::BalanceMemory>();
  std::fill_n(reinterpret_cast<unsigned char*>(memory.get()), sizeof(plan::BalanceMemory), 0xcc);
  plan::SerialCta cta(options.num_threads);
  plan::Balancer<plan::SerialCta>(cta, in, *memory).run();

  DevicePlan result;
  result.fault = cta.fault;
  result.header = read<plan::Header>(words.data());
  result.tasks.resize(static_cast<std::size_t>(result.header.num_tasks));
  for (std::size_t i = 0; i < result.tasks.size(); ++i) {
    result.tasks[i] = read<plan::Task>(words.data() + in.layout.task(std::int64_t(i)));
  }
  result.combines.resize(static_cast<std::size_t>(result.header.num_combines));
  for (std::size_t i = 0; i < result.combines.size(); ++i) {
    result.combines[i] = read<plan::Combine>(words.data() + in.layout.combine(std::int64_t(i)));
  }
  for (std::size_t i = static_cast<std::size_t>(size); i < words.size(); ++i) {
    EXPECT_EQ(words[i], kPoison) << "written past the tensor";
  }
  return result;
}

/// The partials from first_partial on, of `splits` pieces of `rows` rows, are joined by combine
/// `index`, in one step or in two.
inline void expect_joins(const plan::PlacedTile& at, std::int32_t first_partial,
                         std::int32_t splits, std::int32_t index, const DevicePlan& result) {
  const std::int32_t rows = at.num_rows();
  const auto expect = [&](std::int32_t i, std::int32_t partial, std::int32_t count,
                          std::int32_t stride, std::int32_t next) {
    ASSERT_LT(std::size_t(i), result.combines.size());
    const plan::Combine wanted = at.combine(partial, count, stride, next);
    ASSERT_EQ(std::memcmp(&result.combines[std::size_t(i)], &wanted, sizeof(wanted)), 0) << i;
  };
  if (splits <= plan::kMostJoined) {
    expect(index, first_partial, splits, rows, -1);
    return;
  }
  const plan::JoinShape join(splits);
  ASSERT_LE(join.size, plan::kMostJoined);
  ASSERT_EQ(plan::num_combines(splits), 1 + join.groups);
  expect(index, first_partial, join.groups, join.size * rows, -1);
  std::int32_t joined = 0;
  for (std::int32_t group = 0; group < join.groups; ++group) {
    const std::int32_t count = std::min(join.size, splits - joined);
    ASSERT_GE(count, 1);
    expect(index + 1 + group, first_partial + joined * rows, count, rows, index);
    joined += count;
  }
  ASSERT_EQ(joined, splits);
}

/// The tasks are the pieces of all tiles, from the last to the first and of each the heads, so that
/// `result.tasks` backwards are the heads of the first tile's first piece, and so on; partials and
/// combines say the same.
inline void expect_covers(const PlanBatch& batch, const plan::PlanShape& shape,
                          const DevicePlan& result, int num_workers = 264) {
  EXPECT_EQ(result.fault.kind, 0);
  const plan::Lengths lengths{.cu_seqlens_q = batch.cu_seqlens_q.data(),
                              .kv_lens = batch.kv_lens.data(),
                              .num_requests = batch.num_requests()};
  const std::int32_t heads = shape.num_kv_heads;
  const std::int32_t rows_of_head = result.header.num_partial_rows / heads;
  const std::int32_t combines_of_head = result.header.num_combines / heads;
  ASSERT_EQ(rows_of_head * heads, result.header.num_partial_rows);
  ASSERT_EQ(combines_of_head * heads, result.header.num_combines);
  std::size_t left = result.tasks.size();
  std::int32_t next_combine = 0;  // of one head, as
  std::int32_t next_partial = 0;
  std::int32_t num_partials = 0;
  for (std::int32_t i = 0; i < lengths.num_requests; ++i) {
    plan::PlacedTile at{.request_idx = i, .request = lengths.request(i, shape.max_tokens)};
    const std::int32_t rows = at.request.num_tokens * shape.group;
    std::int32_t row = 0;
    for (std::int32_t t = 0; t < plan::num_row_tiles(shape, at.request.num_tokens); ++t) {
      at.tile = plan::row_tile(shape, at.request, t);
      const plan::RowTile& tile = at.tile;
      ASSERT_EQ(tile.row_begin, row);
      ASSERT_LE(tile.row_end - row,
                rows <= shape.rows.narrow ? shape.rows.narrow : shape.rows.wide);
      row = tile.row_end;
      std::int32_t kv = tile.kv_begin;
      std::int32_t splits = 0;
      std::vector<std::int32_t> combine_of_piece;
      do {
        ASSERT_GE(left, std::size_t(heads));
        const plan::Task first = result.tasks[left - 1];
        const bool whole = first.kv_begin == tile.kv_begin && first.kv_end == tile.kv_end;
        for (std::int32_t head = 0; head < heads; ++head) {
          at.head = head;
          const plan::Task& task = result.tasks[--left];
          const std::int32_t partial =
              whole ? -1 : head * rows_of_head + next_partial + splits * at.num_rows();
          const plan::Task wanted = at.task(kv, first.kv_end, partial,
                                            whole ? -1 : head * combines_of_head + first.combine);
          ASSERT_EQ(std::memcmp(&task, &wanted, sizeof(wanted)), 0) << left;
        }
        ASSERT_TRUE(whole || first.kv_begin < first.kv_end);
        kv = first.kv_end;
        ASSERT_TRUE(kv == tile.kv_end || kv % plan::kDeviceTileKv == 0);
        combine_of_piece.push_back(first.combine);
        ++splits;
      } while (kv < tile.kv_end);
      ASSERT_EQ(kv, tile.kv_end);
      if (splits == 1) continue;
      num_partials += splits * heads;
      const plan::JoinShape join(splits);
      for (std::int32_t piece = 0; piece < splits; ++piece) {
        ASSERT_EQ(combine_of_piece[std::size_t(piece)],
                  next_combine + (join.groups > 0 ? 1 + piece / join.size : 0));
      }
      for (std::int32_t head = 0; head < heads; ++head) {
        at.head = head;
        expect_joins(at, head * rows_of_head + next_partial, splits,
                     head * combines_of_head + next_combine, result);
      }
      next_combine += plan::num_combines(splits);
      next_partial += splits * at.num_rows();
    }
    ASSERT_EQ(row, rows);
  }
  EXPECT_EQ(left, 0U);
  EXPECT_EQ(next_combine, combines_of_head);
  EXPECT_EQ(next_partial, rows_of_head);
  EXPECT_EQ(result.header.num_partials, num_partials);
  EXPECT_EQ(result.header.num_requests, batch.num_requests());
  EXPECT_EQ(result.header.num_tokens, batch.cu_seqlens_q.back());
  EXPECT_EQ(result.header.claimed[0], 0U);
  EXPECT_EQ(result.header.claimed[1], 0U);
  const plan::DeviceBound bound = bound_of(batch, shape, num_workers);
  EXPECT_LE(result.header.num_tasks, bound.tasks);
  EXPECT_LE(result.header.num_combines, bound.combines);
  EXPECT_LE(result.header.num_partial_rows, bound.partial_rows);
}

}  // namespace hpcattn::testkit
