// SPDX-License-Identifier: Apache-2.0
#include "src/plan/split.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <tuple>

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
  SplitInput input(std::int64_t kv_heads, std::int64_t group, std::int64_t workers) const {
    return {.cu_seqlens_q = cu_seqlens_q,
            .kv_lens = kv_lens,
            .num_kv_heads = kv_heads,
            .group = group,
            .num_workers = workers};
  }
};

/// What a plan must be whatever it was made from: each row of each head sees each KV token that any
/// row of its tile may see exactly once, and the partials tile their buffer.
void expect_covers(const SplitInput& in, const SplitResult& result) {
  EXPECT_EQ(count_split(in).tasks, static_cast<std::int64_t>(result.tasks.size()));
  EXPECT_EQ(count_split(in).combines, static_cast<std::int64_t>(result.combines.size()));
  using Rows = std::tuple<int, int, int, int>;  // request, head, row_begin, row_end
  std::map<Rows, std::vector<KvRange>> ranges;
  std::vector<char> partial_rows(static_cast<std::size_t>(result.num_partial_rows), 0);
  for (const Task& task : result.tasks) {
    ASSERT_LT(task.row_begin, task.row_end);
    ASSERT_LE(task.kv_begin, task.kv_end);
    ASSERT_LE((task.row_end - task.row_begin) * task.num_heads, kTileRows);
    for (int head = task.kv_head; head < task.kv_head + task.num_heads; ++head) {
      ranges[{task.request, head, task.row_begin, task.row_end}].push_back(
          {task.kv_begin, task.kv_end});
    }
    if (task.partial < 0) continue;
    for (int i = 0; i < task.num_heads * (task.row_end - task.row_begin); ++i) {
      char& used = partial_rows.at(static_cast<std::size_t>(task.partial + i));
      ASSERT_EQ(used, 0) << "two partials share a row";
      used = 1;
    }
  }
  EXPECT_EQ(std::accumulate(partial_rows.begin(), partial_rows.end(), 0), result.num_partial_rows);

  std::map<std::pair<int, int>, std::int64_t> rows_seen;
  for (auto& [rows, pieces] : ranges) {
    const auto [request, head, row_begin, row_end] = rows;
    std::sort(pieces.begin(), pieces.end(), [](KvRange a, KvRange b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < pieces.size(); ++i) ASSERT_EQ(pieces[i - 1].end, pieces[i].begin);
    const std::int64_t num_tokens =
        in.cu_seqlens_q[std::size_t(request) + 1] - in.cu_seqlens_q[std::size_t(request)];
    const std::int64_t kv_len = in.kv_lens[std::size_t(request)];
    for (std::int64_t row = row_begin; row < row_end; ++row) {
      const KvRange seen = visible(in.mask, kv_len - num_tokens + row / in.group, kv_len);
      if (seen.begin >= seen.end) continue;
      ASSERT_LE(pieces.front().begin, seen.begin);
      ASSERT_GE(pieces.back().end, seen.end);
    }
    ASSERT_EQ(rows_seen[std::make_pair(request, head)], row_begin)
        << "rows out of order or missing";
    rows_seen[std::make_pair(request, head)] = row_end;
  }
  for (std::size_t request = 0; request < in.kv_lens.size(); ++request) {
    const std::int64_t rows = (in.cu_seqlens_q[request + 1] - in.cu_seqlens_q[request]) * in.group;
    if (rows == 0) continue;
    for (int head = 0; head < in.num_kv_heads; ++head) {
      EXPECT_EQ(rows_seen[std::make_pair(int(request), head)], rows);
    }
  }
  for (std::size_t i = 1; i < result.tasks.size(); ++i) {
    ASSERT_GE(cost(result.tasks[i - 1]), cost(result.tasks[i])) << "not dearest first";
  }
  const SplitBound bound =
      split_bound(std::int64_t(in.kv_lens.size()), in.cu_seqlens_q.back(), in.num_kv_heads,
                  in.group, in.num_workers, in.fixed_split,
                  in.kv_lens.empty() ? 0 : *std::max_element(in.kv_lens.begin(), in.kv_lens.end()));
  EXPECT_LE(std::int64_t(result.tasks.size()), bound.tasks);
  EXPECT_LE(std::int64_t(result.combines.size()), bound.combines);
}

std::int64_t total_cost(const SplitResult& result) {
  return std::accumulate(result.tasks.begin(), result.tasks.end(), std::int64_t{0},
                         [](std::int64_t sum, const Task& task) { return sum + cost(task); });
}

/// When the last of `workers` ends, each taking the next task when it is free.
std::int64_t makespan(const SplitResult& result, std::int64_t workers) {
  std::vector<std::int64_t> busy(std::size_t(workers), 0);
  for (const Task& task : result.tasks) *std::min_element(busy.begin(), busy.end()) += cost(task);
  return *std::max_element(busy.begin(), busy.end());
}

TEST(Split, ManyEvenRequestsAreNotSplit) {
  const Batch batch = Batch().add(1, 2048, 64);
  const SplitResult result = split(batch.input(8, 4, 2));
  EXPECT_TRUE(result.combines.empty());
  EXPECT_EQ(result.tasks.size(), 64U);  // all heads of a request together
}

TEST(Split, OneLongRequestKeepsAllWorkersBusy) {
  const Batch batch = Batch().add(1, 131072);
  for (const std::int64_t workers : {2, 16, 132}) {
    const SplitResult result = split(batch.input(1, 8, workers));
    EXPECT_LE(makespan(result, workers), total_cost(result) * 11 / (10 * workers)) << workers;
  }
}

TEST(Split, UnevenCostsWhatEvenDoes) {
  const Batch batch = Batch().add(1, 131072).add(1, 4096, 31);
  for (const std::int64_t workers : {2, 16}) {
    const SplitResult result = split(batch.input(8, 8, workers));
    EXPECT_LE(makespan(result, workers), total_cost(result) * 11 / (10 * workers)) << workers;
  }
}

TEST(Split, ShortContextIsSharedByHeads) {
  const Batch batch = Batch().add(1, 300);  // too short to split along the KV
  const SplitResult result = split(batch.input(8, 4, 4));
  EXPECT_EQ(result.tasks.size(), 8U);
  EXPECT_TRUE(result.combines.empty());
}

TEST(Split, OneWorkerNeverSplits) {
  const Batch batch = Batch().add(1, 100000).add(4096, 4096);
  const SplitResult result = split(batch.input(2, 4, 1));
  EXPECT_TRUE(result.combines.empty());
}

TEST(Split, WindowReadsOnlyWhatIsSeen) {
  const Batch batch = Batch().add(1, 100000);
  SplitInput in = batch.input(1, 4, 1);
  in.mask.window = 4096;
  const SplitResult result = split(in);
  ASSERT_EQ(result.tasks.size(), 1U);
  EXPECT_EQ(result.tasks[0].kv_begin, 100000 - 4096);
  EXPECT_EQ(result.tasks[0].kv_end, 100000);
}

TEST(Split, FixedSplitDoesNotDependOnTheBatch) {
  const auto pieces_of_last = [](const Batch& batch, std::int64_t workers) {
    SplitInput in = batch.input(2, 4, workers);
    in.fixed_split = 512;
    const SplitResult result = split(in);
    std::vector<std::tuple<int, int, int, int>> pieces;
    for (const Task& task : result.tasks) {
      if (task.request + 1 != int(batch.kv_lens.size())) continue;
      pieces.emplace_back(task.kv_head, task.row_begin, task.kv_begin, task.kv_end);
    }
    std::sort(pieces.begin(), pieces.end());
    return pieces;
  };
  const auto alone = pieces_of_last(Batch().add(3, 2000), 2);
  EXPECT_EQ(alone.size(), 4U);  // 12 rows of both heads together, four pieces of 2000
  EXPECT_EQ(pieces_of_last(Batch().add(1, 77, 9).add(3, 2000), 2), alone);
  EXPECT_EQ(pieces_of_last(Batch().add(500, 9000).add(3, 2000), 7), alone);
}

TEST(Split, EmptyRequestsAndEmptyBatches) {
  EXPECT_TRUE(split(Batch().input(8, 4, 2)).tasks.empty());
  EXPECT_TRUE(split(Batch().add(0, 500).add(0, 0).input(8, 4, 2)).tasks.empty());
  const SplitResult no_kv = split(Batch().add(3, 0).input(1, 4, 2));
  ASSERT_EQ(no_kv.tasks.size(), 1U);  // its rows are still to be written
  EXPECT_EQ(no_kv.tasks[0].kv_begin, no_kv.tasks[0].kv_end);
}

TEST(Split, RandomBatchesAreCoveredOnce) {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 300; ++round) {
    Batch batch;
    for (int request = pick(0, 9); request > 0; --request) {
      const int kv_len = pick(0, 3) == 0 ? pick(0, 20000) : pick(0, 300);
      batch.add(pick(0, 2) == 0 ? pick(0, 200) : pick(0, 4), kv_len);
    }
    SplitInput in = batch.input(pick(1, 9), pick(1, 20), pick(1, 17));
    in.mask.causal = pick(0, 3) > 0;
    in.mask.window = pick(0, 1) == 0 ? 0 : pick(1, 5000);
    in.fixed_split = pick(0, 2) == 0 ? 64 * pick(1, 20) : 0;
    SCOPED_TRACE(round);
    expect_covers(in, split(in));
  }
}

TEST(Visible, BoundsOfEachMask) {
  EXPECT_EQ(visible({.causal = true}, 4, 10), (KvRange{0, 5}));
  EXPECT_EQ(visible({.causal = false}, 4, 10), (KvRange{0, 10}));
  EXPECT_EQ(visible({.causal = true, .window = 2}, 4, 10), (KvRange{3, 5}));
  EXPECT_EQ(visible({.causal = false, .window = 2}, 4, 10), (KvRange{3, 6}));
  EXPECT_EQ(visible({.causal = true, .window = 1}, 0, 10), (KvRange{0, 1}));
  const KvRange before_all = visible({.causal = true}, -3, 10);
  EXPECT_EQ(before_all.begin, before_all.end);
}

}  // namespace
}  // namespace hpcattn::plan
