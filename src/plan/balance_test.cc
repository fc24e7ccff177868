// SPDX-License-Identifier: Apache-2.0
// The planner of a GPU, run on the host phase by phase as its cta runs it.
#include "src/plan/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <tuple>

#include "src/plan/device_bound.h"
#include "src/plan/serial_cta.h"
#include "src/testing/random.h"

namespace hpcattn::plan {
namespace {

struct Batch {
  std::vector<std::int32_t> cu_seqlens_q{0};
  std::vector<std::int32_t> kv_lens;

  Batch& add(std::int32_t num_tokens, std::int32_t kv_len, int times = 1) {
    for (int i = 0; i < times; ++i) {
      cu_seqlens_q.push_back(cu_seqlens_q.back() + num_tokens);
      kv_lens.push_back(kv_len);
    }
    return *this;
  }
  std::int32_t num_requests() const { return static_cast<std::int32_t>(kv_lens.size()); }
};

PlanShape shape_of(int num_kv_heads, int group, int head_dim = 128, int kv_bytes = 2) {
  return {.mask = {},
          .rows = tile_rows(head_dim),
          .costs = tile_costs(head_dim, kv_bytes),
          .num_kv_heads = num_kv_heads,
          .group = group};
}

struct Result {
  Header header;
  std::vector<Task> tasks;
  std::vector<Combine> combines;
  std::vector<std::int32_t> worker_begin;
  Fault fault;
};

struct Options {
  int num_workers = 264;
  int num_threads = 7;
  std::int64_t words = -1;     // as the bound says
  bool kv_cumulative = false;  // the batch's kv_lens are cumulative
};

DeviceBound bound_of(const Batch& batch, const PlanShape& shape, int num_workers) {
  const std::int32_t longest =
      batch.kv_lens.empty() ? 0 : *std::max_element(batch.kv_lens.begin(), batch.kv_lens.end());
  return device_bound(shape, {.max_requests = batch.num_requests(),
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

Result balance(const Batch& batch, const PlanShape& shape, const Options& options = {}) {
  const DeviceBound bound = bound_of(batch, shape, options.num_workers);
  const std::int64_t size = options.words < 0 ? bound.words : options.words;
  constexpr std::int32_t kPoison = -77;
  constexpr std::size_t kGuard = 64;
  std::vector<std::int32_t> words(static_cast<std::size_t>(size) + kGuard, kPoison);
  BalanceInput in;
  in.lengths = {.cu_seqlens_q = batch.cu_seqlens_q.data(),
                .kv_lens = batch.kv_lens.data(),
                .num_requests = batch.num_requests() - (options.kv_cumulative ? 1 : 0),
                .kv_cumulative = options.kv_cumulative};
  in.shape = shape;
  in.layout = {
      .num_requests = in.lengths.num_requests, .num_workers = options.num_workers, .words = size};
  in.plan = words.data();
  const auto memory = std::make_unique<BalanceMemory>();
  std::fill_n(reinterpret_cast<unsigned char*>(memory.get()), sizeof(BalanceMemory), 0xcc);
  SerialCta cta(options.num_threads);
  Balancer<SerialCta>(cta, in, *memory).run();

  Result result;
  result.fault = cta.fault;
  result.header = read<Header>(words.data());
  result.tasks.resize(static_cast<std::size_t>(result.header.num_tasks));
  for (std::size_t i = 0; i < result.tasks.size(); ++i) {
    result.tasks[i] = read<Task>(words.data() + in.layout.task(std::int64_t(i)));
  }
  result.combines.resize(static_cast<std::size_t>(result.header.num_combines));
  for (std::size_t i = 0; i < result.combines.size(); ++i) {
    result.combines[i] = read<Combine>(words.data() + in.layout.combine(std::int64_t(i)));
  }
  const std::int32_t* begin = words.data() + in.layout.worker_begin();
  result.worker_begin.assign(begin, begin + options.num_workers + 1);
  for (std::size_t i = static_cast<std::size_t>(size); i < words.size(); ++i) {
    EXPECT_EQ(words[i], kPoison) << "written past the tensor";
  }
  return result;
}

std::int64_t cost_of(const PlanShape& shape, const Task& task) {
  return RowTile{.kv_begin = task.kv_begin,
                 .kv_end = task.kv_end,
                 .wide = task.num_tokens * shape.group > shape.rows.narrow}
      .cost(shape.costs);
}

/// What each worker is to do.
std::vector<std::int64_t> loads(const PlanShape& shape, const Result& result) {
  std::vector<std::int64_t> sums(result.worker_begin.size() - 1, 0);
  for (const Task& task : result.tasks) {
    sums[std::size_t(task.worker)] += cost_of(shape, task);
  }
  return sums;
}

/// The tasks are, in order, the pieces of all tiles in order; partials and combines say the same.
void expect_covers(const Batch& batch, const PlanShape& shape, const Result& result) {
  EXPECT_EQ(result.fault.kind, 0);
  const Lengths lengths{.cu_seqlens_q = batch.cu_seqlens_q.data(),
                        .kv_lens = batch.kv_lens.data(),
                        .num_requests = batch.num_requests()};
  std::size_t next = 0;
  std::size_t next_combine = 0;
  std::int32_t next_partial = 0;
  std::int32_t num_partials = 0;
  for (std::int32_t head = 0; head < shape.num_kv_heads; ++head) {
    for (std::int32_t i = 0; i < lengths.num_requests; ++i) {
      const Request request = lengths.request(i, shape.group);
      const std::int32_t rows = request.num_tokens * shape.group;
      std::int32_t row = 0;
      for (std::int32_t index = 0; index < num_row_tiles(shape, request.num_tokens); ++index) {
        const RowTile tile = row_tile(shape, request, index);
        ASSERT_EQ(tile.row_begin, row);
        ASSERT_LE(tile.row_end - row,
                  rows <= shape.rows.narrow ? shape.rows.narrow : shape.rows.wide);
        row = tile.row_end;
        std::int32_t kv = tile.kv_begin;
        std::int32_t splits = 0;
        const std::int32_t first_partial = next_partial;
        do {
          ASSERT_LT(next, result.tasks.size());
          const Task& task = result.tasks[next++];
          ASSERT_EQ(std::make_tuple(task.request, task.kv_head, task.num_heads, task.row_begin,
                                    task.row_end, task.first_token, task.num_tokens, task.kv_len),
                    std::make_tuple(i, head, 1, tile.row_begin, tile.row_end, request.first_token,
                                    request.num_tokens, request.kv_len));
          ASSERT_EQ(task.kv_begin, kv);
          const bool whole = task.kv_begin == tile.kv_begin && task.kv_end == tile.kv_end;
          if (whole) {
            ASSERT_EQ(task.partial, -1);
          } else {
            ASSERT_LT(task.kv_begin, task.kv_end);
            ASSERT_EQ(task.partial, next_partial);
            next_partial += tile.row_end - tile.row_begin;
            ++num_partials;
          }
          kv = task.kv_end;
          ASSERT_TRUE(kv == tile.kv_end || kv % kDeviceTileKv == 0);
          ++splits;
        } while (kv < tile.kv_end);
        ASSERT_EQ(kv, tile.kv_end);
        if (splits == 1) continue;
        ASSERT_LT(next_combine, result.combines.size());
        const Combine& combine = result.combines[next_combine++];
        ASSERT_EQ(std::make_tuple(combine.request, combine.kv_head, combine.num_heads,
                                  combine.row_begin, combine.row_end, combine.partial,
                                  combine.num_splits, combine.first_token),
                  std::make_tuple(i, head, 1, tile.row_begin, tile.row_end, first_partial, splits,
                                  request.first_token));
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
  const DeviceBound bound = bound_of(batch, shape, int(result.worker_begin.size()) - 1);
  EXPECT_LE(result.header.num_tasks, bound.tasks);
  EXPECT_LE(result.header.num_combines, bound.combines);
  EXPECT_LE(result.header.num_partial_rows, bound.partial_rows);
}

/// No worker has over 1.1 times the mean and the shortest piece.
void expect_balanced(const Batch& batch, const PlanShape& shape, int num_workers) {
  const Result result = balance(batch, shape, {.num_workers = num_workers});
  expect_covers(batch, shape, result);
  const std::vector<std::int64_t> sums = loads(shape, result);
  const std::int64_t total = std::accumulate(sums.begin(), sums.end(), std::int64_t{0});
  EXPECT_LE(*std::max_element(sums.begin(), sums.end()),
            total * 11 / (10 * num_workers) + shape.costs.min_share());
}

TEST(Balance, UnevenBatchesKeepAllWorkersBusy) {
  for (const int workers : {216, 264}) {
    for (const int kv_bytes : {1, 2}) {
      SCOPED_TRACE(testing::Message() << workers << " workers, " << kv_bytes << " bytes");
      const PlanShape shape = shape_of(8, 8, 128, kv_bytes);
      expect_balanced(Batch().add(1, 131072).add(1, 4096, 31), shape, workers);
      expect_balanced(Batch().add(1, 131072), shape, workers);
      expect_balanced(Batch().add(1, 131072), shape_of(1, 8, 128, kv_bytes), workers);
      expect_balanced(Batch().add(1, 4096, 64), shape, workers);
      expect_balanced(Batch().add(8192, 8192), shape, workers);
      expect_balanced(Batch().add(512, 512), shape_of(1, 8), workers);
      expect_balanced(Batch().add(2048, 65536).add(1, 3000, 90), shape, workers);
      expect_balanced(Batch().add(1, 10'000'000), shape_of(1, 8), workers);
    }
  }
  PlanShape windowed = shape_of(8, 4);
  windowed.mask.window = 1000;
  expect_balanced(Batch().add(1, 131072).add(1, 4096, 31).add(3000, 9000), windowed, 264);
  PlanShape bidirectional = shape_of(8, 4);
  bidirectional.mask.causal = false;
  expect_balanced(Batch().add(5000, 5000).add(77, 77, 20), bidirectional, 264);
  expect_balanced(Batch().add(1, 50000).add(300, 9000), shape_of(4, 5, 256), 264);
}

TEST(Balance, AShortBatchHasOnePieceAWorker) {
  const PlanShape shape = shape_of(8, 8);
  const Batch batch = Batch().add(1, 1024);
  const Result result = balance(batch, shape);
  expect_covers(batch, shape, result);
  // 16 steps in pieces of 4, for each of 8 heads.
  ASSERT_EQ(result.tasks.size(), 32U);
  for (const Task& task : result.tasks) EXPECT_EQ(task.kv_end - task.kv_begin, 256);
  EXPECT_EQ(result.combines.size(), 8U);
}

TEST(Balance, NoPieceIsACrumb) {
  testkit::Rng random(3);
  for (int round = 0; round < 200; ++round) {
    Batch batch;
    for (std::int64_t i = random.integer(1, 40); i > 0; --i) {
      batch.add(std::int32_t(random.integer(1, 30)), std::int32_t(random.integer(1, 9000)));
    }
    const PlanShape shape = shape_of(int(random.integer(1, 8)), int(random.integer(1, 8)));
    const Result result = balance(batch, shape);
    for (const Task& task : result.tasks) {
      if (task.partial < 0) continue;
      const RowTile piece{.kv_begin = task.kv_begin, .kv_end = task.kv_end};
      ASSERT_GE(piece.steps(),
                shape.costs.min_steps(task.num_tokens * shape.group > shape.rows.narrow));
    }
  }
}

TEST(Balance, FixedSplitDoesNotDependOnTheBatch) {
  const auto pieces_of_last = [](const Batch& batch, int workers) {
    PlanShape shape = shape_of(2, 4);
    shape.fixed_split = 512;
    const Result result = balance(batch, shape, {.num_workers = workers});
    expect_covers(batch, shape, result);
    std::vector<std::tuple<int, int, int, int>> pieces;
    for (const Task& task : result.tasks) {
      if (task.request + 1 != batch.num_requests()) continue;
      pieces.emplace_back(task.kv_head, task.row_begin, task.kv_begin, task.kv_end);
    }
    return pieces;
  };
  const auto alone = pieces_of_last(Batch().add(3, 2000), 2);
  EXPECT_EQ(alone.size(), 8U);
  EXPECT_EQ(pieces_of_last(Batch().add(1, 77, 9).add(3, 2000), 264), alone);
  EXPECT_EQ(pieces_of_last(Batch().add(500, 9000).add(3, 2000), 7), alone);
}

TEST(Balance, FixedSplitsAreDealtByCost) {
  PlanShape shape = shape_of(8, 8);
  shape.fixed_split = 512;
  for (const Batch& batch : {Batch().add(1, 131072).add(1, 4096, 31), Batch().add(1, 4096, 64),
                             Batch().add(700, 8192)}) {
    const Result result = balance(batch, shape);
    expect_covers(batch, shape, result);
    // A worker takes what begins in its share, so at most one piece more than that.
    const std::vector<std::int64_t> sums = loads(shape, result);
    const std::int64_t total = std::accumulate(sums.begin(), sums.end(), std::int64_t{0});
    const std::int64_t piece = shape.costs.overhead + 8 * shape.costs.wide_step;
    EXPECT_LE(*std::max_element(sums.begin(), sums.end()), total * 11 / (10 * 264) + 2 * piece);
  }
}

TEST(Balance, EmptyRequestsAndEmptyBatches) {
  const PlanShape shape = shape_of(8, 4);
  for (const Batch& batch : {Batch(), Batch().add(0, 500).add(0, 0), Batch().add(0, 0, 3000)}) {
    const Result result = balance(batch, shape);
    expect_covers(batch, shape, result);
    EXPECT_TRUE(result.tasks.empty());
  }
  // Rows that see nothing are still to be written.
  const Batch no_kv = Batch().add(0, 9).add(3, 0).add(0, 0, 2).add(200, 0).add(0, 5);
  const Result result = balance(no_kv, shape);
  expect_covers(no_kv, shape, result);
  EXPECT_EQ(result.tasks.size(), 8U * (1 + 7));
}

TEST(Balance, RandomBatchesAreCoveredOnceByAnyNumberOfThreads) {
  testkit::Rng random(7);
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE(round);
    Batch batch;
    for (std::int64_t i = random.integer(0, 20); i > 0; --i) {
      const std::int64_t kv_len = random.integer(0, random.chance(0.3) ? 20000 : 300);
      batch.add(std::int32_t(random.integer(0, random.chance(0.3) ? 200 : 4)),
                std::int32_t(kv_len));
    }
    const std::vector<int> head_dims{64, 128, 256};
    PlanShape shape = shape_of(int(random.integer(1, 9)), int(random.integer(1, 64)),
                               random.pick(head_dims), int(random.integer(1, 2)));
    shape.mask.causal = random.chance(0.7);
    shape.mask.window = random.chance(0.5) ? 0 : random.integer(1, 5000);
    shape.fixed_split = random.chance(0.3) ? std::int32_t(64 * random.integer(1, 20)) : 0;
    const std::vector<int> thread_counts{1, 7, 1024};
    const int num_workers = int(random.integer(1, 300));
    const Result result = balance(
        batch, shape, {.num_workers = num_workers, .num_threads = random.pick(thread_counts)});
    expect_covers(batch, shape, result);
    const Result serial = balance(batch, shape, {.num_workers = num_workers, .num_threads = 1});
    ASSERT_EQ(result.tasks.size(), serial.tasks.size());
    for (std::size_t i = 0; i < result.tasks.size(); ++i) {
      ASSERT_EQ(std::memcmp(&result.tasks[i], &serial.tasks[i], sizeof(Task)), 0);
    }
    ASSERT_EQ(result.header.lengths_hash[0], serial.header.lengths_hash[0]);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace hpcattn::plan
