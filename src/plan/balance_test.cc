// SPDX-License-Identifier: Apache-2.0
// The planner of a GPU, run on the host phase by phase as its cta runs it.
#include "src/plan/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <vector>

#include "src/testing/device_plan.h"
#include "src/testing/random.h"

namespace hpcattn::plan {
namespace {

using testkit::balance;
using testkit::DevicePlan;
using testkit::expect_covers;
using testkit::PlanBatch;
using testkit::shape_of;

std::int64_t cost_of(const PlanShape& shape, const Task& task) {
  return RowTile{.kv_begin = task.kv_begin,
                 .kv_end = task.kv_end,
                 .wide = task.num_tokens * shape.group > shape.rows.narrow}
      .cost(shape.costs);
}

/// When the last worker ends, each of them claiming the next task once it is free.
std::int64_t time_of(const PlanShape& shape, const DevicePlan& result, int num_workers) {
  std::priority_queue<std::int64_t, std::vector<std::int64_t>, std::greater<>> free;
  for (int w = 0; w < num_workers; ++w) free.push(0);
  std::int64_t last = 0;
  for (const Task& task : result.tasks) {
    const std::int64_t end = free.top() + cost_of(shape, task);
    free.pop();
    free.push(end);
    last = std::max(last, end);
  }
  return last;
}

/// The batch takes little longer than its uncut tiles would if they could be dealt out like water;
/// of a short one, little longer than its shortest pieces.
void expect_balanced(const PlanBatch& batch, const PlanShape& shape, int num_workers) {
  const DevicePlan result = balance(batch, shape, {.num_workers = num_workers});
  expect_covers(batch, shape, result, num_workers);
  std::int64_t total = 0;
  bool wide = false;
  for (const Task& task : result.tasks) {
    const bool wide_task = task.num_tokens * shape.group > shape.rows.narrow;
    total += cost_of(shape, task) - (task.partial < 0 ? 0 : shape.costs.overhead(wide_task));
    wide = wide || wide_task;
  }
  const std::int64_t least = std::int64_t{shape.costs.overhead(wide)} +
                             shape.costs.min_steps(wide) * shape.costs.step(wide);
  EXPECT_LE(time_of(shape, result, num_workers), total * 4 / (3 * num_workers) + 4 * least);
}

TEST(Balance, UnevenBatchesKeepAllWorkersBusy) {
  for (const int workers : {216, 264}) {
    for (const int kv_bytes : {1, 2}) {
      SCOPED_TRACE(testing::Message() << workers << " workers, " << kv_bytes << " bytes");
      const PlanShape shape = shape_of(8, 8, 128, kv_bytes);
      expect_balanced(PlanBatch().add(1, 131072).add(1, 4096, 31), shape, workers);
      expect_balanced(PlanBatch().add(1, 131072), shape, workers);
      expect_balanced(PlanBatch().add(1, 131072), shape_of(1, 8, 128, kv_bytes), workers);
      expect_balanced(PlanBatch().add(1, 4096, 64), shape, workers);
      expect_balanced(PlanBatch().add(1, 4096, 50), shape, workers);
      expect_balanced(PlanBatch().add(8192, 8192), shape, workers);
      expect_balanced(PlanBatch().add(512, 512), shape_of(1, 8), workers);
      expect_balanced(PlanBatch().add(2048, 65536).add(1, 3000, 90), shape, workers);
      expect_balanced(PlanBatch().add(1, 10'000'000), shape_of(1, 8), workers);
    }
  }
  PlanShape windowed = shape_of(8, 4);
  windowed.mask.window = 1000;
  expect_balanced(PlanBatch().add(1, 131072).add(1, 4096, 31).add(3000, 9000), windowed, 264);
  PlanShape bidirectional = shape_of(8, 4);
  bidirectional.mask.causal = false;
  expect_balanced(PlanBatch().add(5000, 5000).add(77, 77, 20), bidirectional, 264);
  expect_balanced(PlanBatch().add(1, 50000).add(300, 9000), shape_of(4, 5, 256), 264);
}

TEST(Balance, TheCrewOfManyRowsCutsByItsOwnCosts) {
  const PlanShape shape = shape_of(8, 4);
  PrefillCrew crew{.more_rows_than = 32, .num_workers = 132, .costs = prefill_costs(128, 2)};
  PlanShape own = shape;
  own.costs = crew.costs;
  for (const auto& [batch, is_crews] :
       {std::pair{PlanBatch().add(1024, 2048), true}, std::pair{PlanBatch().add(8, 9000), false},
        std::pair{PlanBatch().add(9, 9000), true}, std::pair{PlanBatch().add(1, 99), false},
        std::pair{PlanBatch().add(700, 3000).add(1, 2000, 20), true}}) {
    const DevicePlan result = balance(batch, shape, {.prefill = crew});
    const DevicePlan want = is_crews ? balance(batch, own, {.num_workers = 132})
                                     : balance(batch, shape, {.num_workers = 264});
    EXPECT_TRUE(std::ranges::equal(result.tasks, want.tasks, [](const Task& a, const Task& b) {
      return std::memcmp(&a, &b, sizeof(a)) == 0;
    }));
    expect_covers(batch, shape, result);
  }
  crew.more_rows_than = 0;  // of any
  EXPECT_EQ(balance(PlanBatch().add(1, 4096, 64), shape, {.prefill = crew}).tasks.size(), 512U);
}

TEST(Balance, AShortBatchIsCutIntoTheShortestPieces) {
  const PlanShape shape = shape_of(8, 8);
  const PlanBatch batch = PlanBatch().add(1, 1024);
  const DevicePlan result = balance(batch, shape);
  expect_covers(batch, shape, result);
  const int pieces = 16 / shape.costs.min_narrow;
  ASSERT_EQ(result.tasks.size(), std::size_t(8 * pieces));
  for (const Task& task : result.tasks) EXPECT_EQ(task.kv_end - task.kv_begin, 1024 / pieces);
  EXPECT_EQ(result.combines.size(), 8U);
}

TEST(Balance, RequestsAlikeAreCutAlikeOrNotAtAll) {
  const PlanShape shape = shape_of(8, 8);
  const auto plan = [&](const PlanBatch& batch) {
    const DevicePlan result = balance(batch, shape);
    expect_covers(batch, shape, result);
    return result;
  };
  EXPECT_TRUE(plan(PlanBatch().add(1, 4096, 64)).combines.empty());  // two tiles a worker
  EXPECT_TRUE(plan(PlanBatch().add(1, 4096, 32)).combines.empty());  // one
  const DevicePlan halves = plan(PlanBatch().add(1, 4096, 16));
  EXPECT_EQ(halves.tasks.size(), 2U * 16 * 8);
  // Nearly alike is alike.
  EXPECT_EQ(plan(PlanBatch().add(1, 4096, 8).add(1, 3900, 8)).tasks.size(), 2U * 16 * 8);
  const DevicePlan alone = plan(PlanBatch().add(1, 131072));
  EXPECT_EQ(alone.tasks.size(), 264U);
  EXPECT_EQ(alone.combines.size(), 8U * 4);  // 33 partials in three groups
  // Two tiles a worker would leave 64 of 264 idle.
  EXPECT_FALSE(plan(PlanBatch().add(1, 4096, 50)).combines.empty());
}

TEST(Balance, NoPieceIsACrumb) {
  testkit::Rng random(3);
  for (int round = 0; round < 200; ++round) {
    PlanBatch batch;
    for (std::int64_t i = random.integer(1, 40); i > 0; --i) {
      batch.add(std::int32_t(random.integer(1, 30)), std::int32_t(random.integer(1, 9000)));
    }
    const PlanShape shape = shape_of(int(random.integer(1, 8)), int(random.integer(1, 8)));
    const DevicePlan result = balance(batch, shape);
    for (const Task& task : result.tasks) {
      if (task.partial < 0) continue;
      const RowTile piece{.kv_begin = task.kv_begin, .kv_end = task.kv_end};
      ASSERT_GE(piece.steps(),
                shape.costs.min_steps(task.num_tokens * shape.group > shape.rows.narrow));
    }
  }
}

TEST(Balance, TheHeadsOfAPieceComeOneAfterTheOther) {
  const PlanShape shape = shape_of(4, 8);
  const DevicePlan result = balance(PlanBatch().add(1, 5000).add(300, 6000), shape);
  for (std::size_t i = 0; i < result.tasks.size(); ++i) {
    EXPECT_EQ(result.tasks[i].kv_head, 3 - int(i % 4));
    EXPECT_EQ(result.tasks[i].kv_begin, result.tasks[i / 4 * 4].kv_begin);
  }
  EXPECT_EQ(result.tasks.front().request, 1);
  EXPECT_EQ(result.tasks.back().request, 0);
}

TEST(Balance, FixedSplitDoesNotDependOnTheBatch) {
  const auto pieces_of_last = [](const PlanBatch& batch, int workers) {
    PlanShape shape = shape_of(2, 4);
    shape.fixed_split = 512;
    const DevicePlan result = balance(batch, shape, {.num_workers = workers});
    expect_covers(batch, shape, result, workers);
    std::vector<std::tuple<int, int, int, int>> pieces;
    for (const Task& task : result.tasks) {
      if (task.request + 1 != batch.num_requests()) continue;
      pieces.emplace_back(task.kv_head, task.row_begin, task.kv_begin, task.kv_end);
    }
    return pieces;
  };
  const auto alone = pieces_of_last(PlanBatch().add(3, 2000), 2);
  EXPECT_EQ(alone.size(), 8U);
  EXPECT_EQ(pieces_of_last(PlanBatch().add(1, 77, 9).add(3, 2000), 264), alone);
  EXPECT_EQ(pieces_of_last(PlanBatch().add(500, 9000).add(3, 2000), 7), alone);
}

TEST(Balance, EmptyRequestsAndEmptyBatches) {
  const PlanShape shape = shape_of(8, 4);
  for (const PlanBatch& batch :
       {PlanBatch(), PlanBatch().add(0, 500).add(0, 0), PlanBatch().add(0, 0, 3000)}) {
    const DevicePlan result = balance(batch, shape);
    expect_covers(batch, shape, result);
    EXPECT_TRUE(result.tasks.empty());
  }
  // Rows that see nothing are still to be written.
  const PlanBatch no_kv = PlanBatch().add(0, 9).add(3, 0).add(0, 0, 2).add(200, 0).add(0, 5);
  const DevicePlan result = balance(no_kv, shape);
  expect_covers(no_kv, shape, result);
  EXPECT_EQ(result.tasks.size(), 8U * (1 + 7));
}

TEST(Balance, RandomBatchesAreCoveredOnceByAnyNumberOfThreads) {
  testkit::Rng random(7);
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE(round);
    PlanBatch batch;
    const std::int64_t num_requests = random.integer(0, 20);
    if (random.chance(0.2)) {
      batch.add(std::int32_t(random.integer(1, 5)), std::int32_t(random.integer(0, 20000)),
                int(num_requests));
    }
    while (batch.num_requests() < num_requests) {
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
    const DevicePlan result = balance(
        batch, shape, {.num_workers = num_workers, .num_threads = random.pick(thread_counts)});
    expect_covers(batch, shape, result, num_workers);
    const DevicePlan serial = balance(batch, shape, {.num_workers = num_workers, .num_threads = 1});
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
