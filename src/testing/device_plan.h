// SPDX-License-Identifier: Apache-2.0
// Batches planned by a GPU's planner on the host, and what must hold of every plan of it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <tuple>
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
  std::vector<std::int32_t> worker_begin;
  Fault fault;
};

struct BalanceOptions {
  int num_workers = 264;
  int num_threads = 7;
  std::int64_t words = -1;     // as the bound says
  bool kv_cumulative = false;  // the batch's kv_lens are cumulative
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
  in.layout = {
      .num_requests = in.lengths.num_requests, .num_workers = options.num_workers, .words = size};
  in.plan = words.data();
  const auto memory = std::make_unique<plan::BalanceMemory>();
  std::fill_n(reinterpret_cast<unsigned char*>(memory.get()), sizeof(plan::BalanceMemory), 0xcc);
  plan::SerialCta cta(options.num_threads);
  if (shape.fixed_split > 0) {
    plan::Balancer<plan::CutMode::kFixed, plan::SerialCta>(cta, in, *memory).run();
  } else {
    plan::Balancer<plan::CutMode::kBalanced, plan::SerialCta>(cta, in, *memory).run();
  }

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
  const std::int32_t* begin = words.data() + in.layout.worker_begin();
  result.worker_begin.assign(begin, begin + options.num_workers + 1);
  for (std::size_t i = static_cast<std::size_t>(size); i < words.size(); ++i) {
    EXPECT_EQ(words[i], kPoison) << "written past the tensor";
  }
  return result;
}

/// The tasks are, in order, the pieces of all tiles in order; partials and combines say the same.
inline void expect_covers(const PlanBatch& batch, const plan::PlanShape& shape,
                          const DevicePlan& result) {
  EXPECT_EQ(result.fault.kind, 0);
  const plan::Lengths lengths{.cu_seqlens_q = batch.cu_seqlens_q.data(),
                              .kv_lens = batch.kv_lens.data(),
                              .num_requests = batch.num_requests()};
  std::size_t next = 0;
  std::size_t next_combine = 0;
  std::int32_t next_partial = 0;
  std::int32_t num_partials = 0;
  for (std::int32_t head = 0; head < shape.num_kv_heads; ++head) {
    for (std::int32_t i = 0; i < lengths.num_requests; ++i) {
      const plan::Request request = lengths.request(i, shape.max_tokens);
      const std::int32_t rows = request.num_tokens * shape.group;
      std::int32_t row = 0;
      for (std::int32_t index = 0; index < plan::num_row_tiles(shape, request.num_tokens);
           ++index) {
        const plan::RowTile tile = plan::row_tile(shape, request, index);
        ASSERT_EQ(tile.row_begin, row);
        ASSERT_LE(tile.row_end - row,
                  rows <= shape.rows.narrow ? shape.rows.narrow : shape.rows.wide);
        row = tile.row_end;
        std::int32_t kv = tile.kv_begin;
        std::int32_t splits = 0;
        const std::int32_t first_partial = next_partial;
        do {
          ASSERT_LT(next, result.tasks.size());
          const plan::Task& task = result.tasks[next++];
          ASSERT_EQ(std::make_tuple(task.request, task.kv_head, task.num_heads, task.row_begin,
                                    task.row_end, task.first_token, task.num_tokens, task.kv_len),
                    std::make_tuple(i, head, 1, tile.row_begin, tile.row_end, request.first_token,
                                    request.num_tokens, request.kv_len));
          ASSERT_EQ(task.kv_begin, kv);
          const bool whole = task.kv_begin == tile.kv_begin && task.kv_end == tile.kv_end;
          ASSERT_EQ(task.combine, whole ? -1 : static_cast<std::int32_t>(next_combine));
          if (whole) {
            ASSERT_EQ(task.partial, -1);
          } else {
            ASSERT_LT(task.kv_begin, task.kv_end);
            ASSERT_EQ(task.partial, next_partial);
            next_partial += tile.row_end - tile.row_begin;
            ++num_partials;
          }
          kv = task.kv_end;
          ASSERT_TRUE(kv == tile.kv_end || kv % plan::kDeviceTileKv == 0);
          ++splits;
        } while (kv < tile.kv_end);
        ASSERT_EQ(kv, tile.kv_end);
        if (splits == 1) continue;
        ASSERT_LT(next_combine, result.combines.size());
        const plan::Combine& combine = result.combines[next_combine++];
        ASSERT_EQ(
            std::make_tuple(combine.request, combine.kv_head, combine.num_heads, combine.row_begin,
                            combine.row_end, combine.partial, combine.num_splits,
                            combine.first_token, combine.arrived[0], combine.arrived[1]),
            std::make_tuple(i, head, 1, tile.row_begin, tile.row_end, first_partial, splits,
                            request.first_token, 0U, 0U));
      }
      ASSERT_EQ(row, rows);
    }
  }
  EXPECT_EQ(next, result.tasks.size());
  EXPECT_EQ(next_combine, result.combines.size());
  EXPECT_EQ(result.header.num_partial_rows, next_partial);
  EXPECT_EQ(result.header.num_partials, num_partials);
  EXPECT_EQ(result.header.num_requests, batch.num_requests());
  EXPECT_EQ(result.header.num_tokens, batch.cu_seqlens_q.back());
  EXPECT_EQ(result.worker_begin.front(), 0);
  EXPECT_EQ(result.worker_begin.back(), result.header.num_tasks);
  for (std::size_t w = 0; w + 1 < result.worker_begin.size(); ++w) {
    ASSERT_LE(result.worker_begin[w], result.worker_begin[w + 1]);
    for (std::int32_t j = result.worker_begin[w]; j < result.worker_begin[w + 1]; ++j) {
      ASSERT_EQ(result.tasks[std::size_t(j)].worker, int(w));
    }
  }
  const plan::DeviceBound bound = bound_of(batch, shape, int(result.worker_begin.size()) - 1);
  EXPECT_LE(result.header.num_tasks, bound.tasks);
  EXPECT_LE(result.header.num_combines, bound.combines);
  EXPECT_LE(result.header.num_partial_rows, bound.partial_rows);
}

}  // namespace hpcattn::testkit
