// SPDX-License-Identifier: Apache-2.0
// Where the host does without a plan, none would cut a tile.
#include "src/plan/whole_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/testing/device_plan.h"
#include "src/testing/random.h"

namespace hpcattn::plan {
namespace {

using testkit::balance;
using testkit::PlanBatch;

constexpr std::int32_t kWorkers = 132;

PlanShape prefill_shape(int num_kv_heads, int group, int head_dim = 128, int kv_bytes = 2) {
  PlanShape shape = testkit::shape_of(num_kv_heads, group, head_dim, kv_bytes);
  shape.costs = prefill_costs(head_dim, kv_bytes);
  return shape;
}

bool suffice(const PlanShape& shape, std::int64_t requests, std::int64_t tokens,
             std::int64_t most_kv) {
  return whole_tiles_suffice(
      shape, {.num_requests = requests, .num_tokens = tokens, .most_kv = most_kv}, kWorkers);
}

TEST(WholeTiles, PromptsNeedNoPlanAndChunksOverLongCachesDo) {
  const PlanShape all_heads = prefill_shape(8, 8);
  const PlanShape one_head = prefill_shape(1, 8);
  for (std::int64_t tokens : {1, 100, 512, 2048, 8192, 131072}) {
    EXPECT_TRUE(suffice(all_heads, 1, tokens, tokens)) << tokens;
  }
  EXPECT_TRUE(suffice(one_head, 1, 512, 512));
  EXPECT_TRUE(suffice(one_head, 1, 2048, 2048));
  EXPECT_TRUE(suffice(one_head, 1, 8192, 8192));
  EXPECT_TRUE(suffice(all_heads, 16, 16 * 512, 512));
  // A prompt of whose cache the host knows no more than how long it may be.
  EXPECT_FALSE(suffice(one_head, 1, 512, 32768));
  EXPECT_FALSE(suffice(one_head, 1, 2048, 32768));
  EXPECT_FALSE(suffice(all_heads, 1, 2048, 131072));
  EXPECT_FALSE(suffice(all_heads, 0, 0, 0));
  // Other kernels' tiles.
  EXPECT_FALSE(suffice(testkit::shape_of(8, 8), 1, 512, 512));
  // A window bounds what a tile sees; who sees all of a cache may see nothing else.
  PlanShape windowed = one_head;
  windowed.mask.window = 500;
  EXPECT_TRUE(suffice(windowed, 1, 512, 131072));
  PlanShape bidirectional = one_head;
  bidirectional.mask.causal = false;
  EXPECT_FALSE(suffice(bidirectional, 1, 4096, 4096));
  EXPECT_TRUE(suffice(bidirectional, 1, 4096, 1000));
}

TEST(WholeTiles, WhereNoneIsMadeAPlanWouldCutNothing) {
  testkit::Rng random(11);
  int without = 0;
  for (int round = 0; round < 3000; ++round) {
    PlanShape shape =
        prefill_shape(int(random.integer(1, 8)), int(random.integer(1, 16)),
                      random.pick(std::vector<int>{64, 128, 256}), int(random.integer(1, 2)));
    shape.mask.causal = random.chance(0.8);
    shape.mask.window = random.chance(0.7) ? 0 : random.integer(1, 5000);
    PlanBatch batch;
    std::int64_t tokens = 0;
    std::int64_t most_kv = 1;
    const std::int64_t requests = random.integer(1, 12);
    for (std::int64_t i = 0; i < requests; ++i) {
      const std::int64_t q_len = random.integer(0, random.chance(0.5) ? 3000 : 200);
      const std::int64_t kv_len = q_len + random.integer(0, random.chance(0.3) ? 9000 : 100);
      batch.add(std::int32_t(q_len), std::int32_t(kv_len));
      tokens += q_len;
      most_kv = std::max(most_kv, kv_len);
    }
    if (tokens * shape.group <= 32 * requests || !suffice(shape, requests, tokens, most_kv)) {
      continue;
    }
    ++without;
    EXPECT_TRUE(balance(batch, shape, {.num_workers = kWorkers}).combines.empty()) << round;
  }
  EXPECT_GT(without, 1000);
  EXPECT_LT(without, 2900);
}

}  // namespace
}  // namespace hpcattn::plan
