// SPDX-License-Identifier: Apache-2.0
// A GPU's planner at its limits: large batches, tensors too small, lengths that can not be.
#include <gtest/gtest.h>

#include <cstring>

#include "src/testing/device_plan.h"
#include "src/testing/random.h"

namespace hpcattn::plan {
namespace {

using testkit::balance;
using testkit::DevicePlan;
using testkit::expect_covers;
using testkit::PlanBatch;
using testkit::shape_of;

TEST(BalanceLimits, LargeBatches) {
  for (const std::int32_t fixed_split : {0, 4096}) {
    PlanShape shape = shape_of(8, 8);
    shape.fixed_split = fixed_split;
    for (const PlanBatch& batch :
         {PlanBatch().add(1, 100, 70'000), PlanBatch().add(200'000, 200'000),
          PlanBatch().add(1, 10'000'000),
          PlanBatch().add(0, 0, 3000).add(1, 20, 1025).add(0, 9, 5000).add(300, 40'000)}) {
      const DevicePlan result = balance(batch, shape, {.num_threads = 1024});
      expect_covers(batch, shape, result);
    }
  }
}

TEST(BalanceLimits, CumulativeLengthsOfPackedKeys) {
  const PlanShape shape = shape_of(2, 4);
  const PlanBatch each = PlanBatch().add(5, 300).add(1, 0).add(0, 70).add(200, 5000);
  PlanBatch packed = each;
  packed.kv_lens = {0, 300, 300, 370, 5370};
  const DevicePlan expected = balance(each, shape);
  const DevicePlan result = balance(packed, shape, {.kv_cumulative = true});
  ASSERT_EQ(result.tasks.size(), expected.tasks.size());
  for (std::size_t i = 0; i < result.tasks.size(); ++i) {
    EXPECT_EQ(std::memcmp(&result.tasks[i], &expected.tasks[i], sizeof(Task)), 0);
  }
  EXPECT_EQ(result.header.lengths_hash[0], expected.header.lengths_hash[0]);
}

TEST(BalanceLimits, ATensorTooSmallHoldsAPlanWithoutTasks) {
  for (const std::int32_t fixed_split : {0, 64}) {
    PlanShape shape = shape_of(8, 8);
    shape.fixed_split = fixed_split;
    const PlanBatch batch = PlanBatch().add(1, 131072).add(300, 9000);
    const DeviceLayout layout{.num_requests = 2};
    for (const std::int64_t words :
         {layout.task(0), layout.task(1), layout.task(8), layout.task(100)}) {
      const DevicePlan result = balance(batch, shape, {.words = words});
      EXPECT_EQ(result.fault.kind, std::int32_t(FaultKind::kPlanOverflow)) << words;
      EXPECT_EQ(result.fault.values[2], words);
      EXPECT_EQ(result.header.num_tasks, 0);
      EXPECT_EQ(result.header.num_combines, 0);
      EXPECT_EQ(result.header.num_partials, 0);
    }
  }
}

TEST(BalanceLimits, LengthsThatCanNotBeAreClampedAndReported) {
  const PlanShape shape = shape_of(2, 4);
  PlanBatch batch = PlanBatch().add(1, 500).add(3, 600).add(2, 700);
  batch.kv_lens[1] = -9;
  DevicePlan result = balance(batch, shape);
  EXPECT_EQ(result.fault.kind, std::int32_t(FaultKind::kLength));
  EXPECT_EQ(result.fault.values[0], 1);
  EXPECT_EQ(result.fault.values[1], 1);
  EXPECT_EQ(result.fault.values[2], -9);
  EXPECT_EQ(result.header.num_tasks,
            result.header.num_partials + 2 * 3 - result.header.num_combines);

  batch = PlanBatch().add(1, 500).add(3, 600).add(2, 700);
  batch.cu_seqlens_q[2] = 0;  // falls from 1
  result = balance(batch, shape, {.words = 100'000});
  EXPECT_EQ(result.fault.kind, std::int32_t(FaultKind::kLength));
  EXPECT_EQ(result.fault.values[0], 0);
  EXPECT_EQ(result.fault.values[1], 2);
  for (const Task& task : result.tasks) EXPECT_NE(task.request, 1);

  testkit::Rng random(5);  // anything at all: nothing hangs, nothing is written past the tensor
  for (int round = 0; round < 300; ++round) {
    for (std::int32_t& value : batch.cu_seqlens_q) value = std::int32_t(random.next());
    for (std::int32_t& value : batch.kv_lens) value = std::int32_t(random.next());
    PlanShape any = shape;
    any.fixed_split = random.chance(0.5) ? 64 : 0;
    balance(batch, any, {.words = 20'000});
  }
}

}  // namespace
}  // namespace hpcattn::plan
