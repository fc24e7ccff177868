// SPDX-License-Identifier: Apache-2.0
// Lengths and sizes near the ends of their types: refused at once, without the memory that they ask
// for.
#include <gtest/gtest.h>

#include <limits>

#include "hpcattn/error.h"
#include "hpcattn/plan.h"
#include "src/testing/guarded_tensor.h"

namespace hpcattn {
namespace {

using testkit::GuardedTensor;

constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();

AttentionGroup small_group() {
  AttentionGroup group;
  group.num_q_heads = 4;
  group.num_kv_heads = 2;
  group.head_dim = 64;
  return group;
}

void expect_refused(const AttentionGroup& group, const std::vector<std::int32_t>& ends,
                    const std::vector<std::int32_t>& lens, std::int64_t fixed_split,
                    const std::string& text) {
  const GuardedTensor cu_seqlens_q = GuardedTensor::of_ints(ends);
  const GuardedTensor kv_lens = GuardedTensor::of_ints(lens);
  const GuardedTensor plan(DType::kInt32, {100});
  const std::vector<std::uint8_t> before = plan.bytes();
  try {
    make_plan({group, cu_seqlens_q, kv_lens, fixed_split, plan});
    ADD_FAILURE() << "accepted, expected: " << text;
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
  EXPECT_EQ(plan.bytes(), before);
}

TEST(PlanLimits, HugeBatchesAreRefusedBeforeTheyArePlanned) {
  const AttentionGroup group = small_group();
  expect_refused(group, {0, kMax / 2}, {kMax}, 0, "plan has 100 words, this batch needs ");
  expect_refused(group, {0, 1}, {kMax}, 64, "this batch needs ");
  expect_refused(group, {0, kMax / 2}, {kMax}, 64, "tasks. Cut the batch");
  expect_refused(group, {0, kMax}, {10}, 0, "are over 2^31 rows");
  AttentionGroup many_heads = group;
  many_heads.num_q_heads = many_heads.num_kv_heads = kMax;
  expect_refused(many_heads, {0, kMax}, {kMax}, 0, "tasks. Cut the batch");
}

TEST(PlanLimits, AHugeFixedSplitIsNoSplit) {
  const GuardedTensor cu_seqlens_q = GuardedTensor::of_ints(std::vector<std::int32_t>{0, 3});
  const GuardedTensor kv_lens = GuardedTensor::of_ints(std::vector<std::int32_t>{500});
  const GuardedTensor plan(DType::kInt32, {200});
  const std::int64_t largest = std::numeric_limits<std::int64_t>::max() / 64 * 64;
  make_plan({small_group(), cu_seqlens_q, kv_lens, largest, plan});
  EXPECT_EQ(summarize(plan).num_partials, 0);
}

TEST(PlanLimits, CapacitiesPastAllMemoryAreRefused) {
  const auto refused = [](auto change) {
    PlanCapacity capacity;
    capacity.max_requests = 4;
    capacity.max_tokens = 100;
    capacity.max_kv_len = 1000;
    AttentionGroup group = small_group();
    change(capacity, group);
    EXPECT_THROW(plan_words(group, capacity), InvalidArgument);
  };
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  refused([&](PlanCapacity& c, AttentionGroup&) { c.max_requests = huge; });
  refused([&](PlanCapacity& c, AttentionGroup&) { c.max_tokens = huge; });
  refused([&](PlanCapacity& c, AttentionGroup&) { c.max_kv_len = huge; });
  refused([&](PlanCapacity& c, AttentionGroup&) { c.max_tokens = -1; });
  refused([&](PlanCapacity& c, AttentionGroup& g) {
    c.max_tokens = kMax;
    g.num_q_heads = g.num_kv_heads = kMax;
  });
  refused([&](PlanCapacity& c, AttentionGroup&) {
    c.max_tokens = kMax;
    c.max_kv_len = kMax;
    c.fixed_split = 64;
  });
}

}  // namespace
}  // namespace hpcattn
