// SPDX-License-Identifier: Apache-2.0
// The plan of a GPU that need not be there. The planner itself: src/plan/balance_test.cc.
#include "src/cuda/plan_preview.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "hpcattn/error.h"

namespace hpcattn::cuda {
namespace {

AttentionGroup group_64_8() {
  AttentionGroup group;
  group.num_q_heads = 64;
  group.num_kv_heads = 8;
  group.head_dim = 128;
  group.page_size = 64;
  group.q_dtype = group.kv_dtype = DType::kBFloat16;
  return group;
}

PlanPreview preview(const std::vector<std::int32_t>& cu, const std::vector<std::int32_t>& lens,
                    std::int64_t fixed_split = 0, std::int64_t num_sms = 132) {
  return preview_plan(group_64_8(), cu, lens, fixed_split, "sm_90a", num_sms);
}

TEST(PlanPreview, ManyRowsAreForThePrefillKernelsCtas) {
  const auto workers = [](std::int32_t tokens, const char* arch, std::int64_t fixed_split = 0) {
    return preview_plan(group_64_8(), std::vector<std::int32_t>{0, tokens, tokens + 1},
                        std::vector<std::int32_t>{4096, 4096}, fixed_split, arch, 132)
        .num_workers;
  };
  EXPECT_EQ(workers(8, "sm_90a"), 132);  // 36 rows a request
  EXPECT_EQ(workers(7, "sm_90a"), 264);
  EXPECT_EQ(workers(8, "sm_90a", 512), 264);
  EXPECT_EQ(workers(2048, "sm_80"), 264);
}

TEST(PlanPreview, AChunkWhoseTilesAreTwoForEachCtaIsNotCut) {
  AttentionGroup group = group_64_8();
  group.num_q_heads = 32;
  const std::vector<std::int32_t> cu = {0, 1024};
  const PlanPreview plan =
      preview_plan(group, cu, std::vector<std::int32_t>{2048}, 0, "sm_90a", 132);
  EXPECT_EQ(plan.tasks.size(), 256U);
  EXPECT_TRUE(plan.combines.empty());
}

TEST(PlanPreview, DealsABatchToAllWorkers) {
  const PlanPreview plan = preview({0, 1, 2, 12}, {131072, 17, 3000});
  EXPECT_EQ(plan.num_workers, 264);
  EXPECT_EQ(plan.header.num_tokens, 12);
  EXPECT_EQ(plan.narrow_tiles, 16);     // two requests of 8 rows, 8 heads
  EXPECT_EQ(plan.wide_tiles, 8);        // 10 tokens x 8 rows in a tile of 128
  EXPECT_GT(plan.combines.size(), 0U);  // the long one is split
  ASSERT_EQ(plan.costs.size(), plan.tasks.size());
  // Every pair of a row and a KV token within the tiles' ranges is some task's, once.
  std::map<int, std::int64_t> kv_of_request;
  for (const plan::Task& task : plan.tasks) {
    kv_of_request[task.request] += task.kv_end - task.kv_begin;
  }
  EXPECT_EQ(kv_of_request[0], 8 * 131072);
  EXPECT_EQ(kv_of_request[1], 8 * 17);
  EXPECT_EQ(kv_of_request[2], 8 * 3000);
}

TEST(PlanPreview, FollowsTheNumberOfMultiprocessors) {
  const PlanPreview few = preview({0, 1}, {131072}, 0, 8);
  const PlanPreview many = preview({0, 1}, {131072}, 0, 256);
  EXPECT_EQ(few.num_workers, 16);
  EXPECT_LT(few.tasks.size(), many.tasks.size());
}

TEST(PlanPreview, CutsAtAFixedSplit) {
  const PlanPreview plan = preview({0, 1}, {1000}, 256);
  ASSERT_EQ(plan.tasks.size(), 8U * 4U);
  EXPECT_EQ(plan.tasks[0].kv_begin, 768);  // the last piece comes first, of all heads
  EXPECT_EQ(plan.tasks[8].kv_begin, 512);
  EXPECT_EQ(plan.combines.size(), 8U);
}

TEST(PlanPreview, ABatchWithoutTokensHasNoTask) {
  EXPECT_TRUE(preview({0, 0}, {5}).tasks.empty());
  EXPECT_TRUE(preview({0}, {}).tasks.empty());
}

TEST(PlanPreview, RefusesWhatIsNoBatch) {
  EXPECT_THROW(preview({0, 1}, {}), InvalidArgument);
  EXPECT_THROW(preview({1, 2}, {5}), InvalidArgument);
  EXPECT_THROW(preview({0, 2, 1}, {5, 5}), InvalidArgument);
  EXPECT_THROW(preview({0, 1}, {-5}), InvalidArgument);
  EXPECT_THROW(preview({0, 1}, {5}, 100), InvalidArgument);
  EXPECT_THROW(preview({0, 1}, {5}, 0, 0), InvalidArgument);
  EXPECT_THROW(preview({0, 1}, {5}, 0, 1025), InvalidArgument);
  EXPECT_THROW(preview({0, 1 << 27}, {1 << 27}, 64), Error);
}

}  // namespace
}  // namespace hpcattn::cuda
