// SPDX-License-Identifier: Apache-2.0
#include "src/plan/plan.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "hpcattn/error.h"

namespace hpcattn {
namespace {

AttentionGroup group_32_8() {
  AttentionGroup group;
  group.num_q_heads = 32;
  group.num_kv_heads = 8;
  group.head_dim = 128;
  group.page_size = 16;
  group.q_dtype = DType::kBFloat16;
  group.kv_dtype = DType::kFloat8E4M3;
  group.window = 4096;
  return group;
}

Tensor int_tensor(std::vector<std::int32_t>& values) {
  return Tensor::contiguous(values.data(), DType::kInt32, {std::int64_t(values.size())});
}

struct PlanTest : testing::Test {
  std::vector<std::int32_t> cu{0, 1, 2, 34};
  std::vector<std::int32_t> lens{5000, 17, 3000};
  std::vector<std::int32_t> words = std::vector<std::int32_t>(20000, 0);
  AttentionGroup group = group_32_8();

  void make() {
    make_plan({.group = group,
               .cu_seqlens_q = int_tensor(cu),
               .kv_lens = int_tensor(lens),
               .plan = int_tensor(words)},
              {.num_threads = 4});
  }
  plan::PlanView view_for() {
    return plan::view_for(int_tensor(words), group, int_tensor(cu), int_tensor(lens));
  }
  static std::string refusal(const std::function<void()>& call) {
    try {
      call();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(PlanTest, SaysWhatItWasMadeFrom) {
  make();
  const PlanSummary summary = summarize(int_tensor(words));
  EXPECT_EQ(summary.group, group);
  EXPECT_EQ(summary.num_requests, 3);
  EXPECT_EQ(summary.num_tokens, 34);
  EXPECT_GT(summary.num_tasks, 3);
  EXPECT_GE(summary.total_work, summary.longest_task * 2);
  EXPECT_EQ(std::int64_t(view_for().tasks.size()), summary.num_tasks);
  EXPECT_EQ(to_string(group),
            "32:8 heads, head_dim 128, page 16, q bfloat16, kv float8_e4m3, causal, window 4096");
}

TEST_F(PlanTest, IsRefusedForAnotherGroup) {
  make();
  group.window.reset();
  EXPECT_NE(refusal([&] { view_for(); }).find("it was made for 32:8 heads"), std::string::npos);
}

TEST_F(PlanTest, IsRefusedForAnotherFixedSplit) {
  make();
  const auto view_with = [&](std::int64_t fixed_split) {
    plan::view_for(int_tensor(words), group, int_tensor(cu), int_tensor(lens), fixed_split);
  };
  EXPECT_NO_THROW(view_with(0));
  EXPECT_NO_THROW(view_with(-1));
  EXPECT_NE(refusal([&] { view_with(512); }).find("made with fixed_split 0, this call has 512"),
            std::string::npos);
}

TEST_F(PlanTest, IsRefusedForOtherLengths) {
  make();
  lens[1] = 18;
  EXPECT_NE(refusal([&] { view_for(); }).find("made for other lengths"), std::string::npos);
  make();
  EXPECT_NO_THROW(view_for());  // updated in place
}

TEST_F(PlanTest, IsRefusedForOtherNumberOfRequests) {
  make();
  cu.push_back(40);
  lens.push_back(9);
  EXPECT_NE(refusal([&] { view_for(); }).find("made for 3 requests, this call has 4"),
            std::string::npos);
}

TEST_F(PlanTest, EveryChangedWordIsNoticed) {
  make();
  const std::int64_t used =
      plan::kHeaderWords + summarize(int_tensor(words)).num_tasks * plan::kTaskWords;
  for (std::int64_t i = 0; i < used; ++i) {
    words[std::size_t(i)] ^= 0x40;
    EXPECT_THROW(summarize(int_tensor(words)), InvalidArgument) << "word " << i;
    words[std::size_t(i)] ^= 0x40;
  }
  EXPECT_NO_THROW(summarize(int_tensor(words)));
}

TEST_F(PlanTest, RandomWordsAreNoPlan) {
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = std::int32_t(i * 2654435761U);
  EXPECT_THROW(summarize(int_tensor(words)), InvalidArgument);
}

TEST_F(PlanTest, CapacityHoldsEveryBatchWithinIt) {
  const PlanCapacity capacity{.max_requests = 3, .max_tokens = 34, .num_workers = 4};
  words.assign(std::size_t(plan_words(group, capacity)), 0);
  EXPECT_NO_THROW(make());
  words.assign(40, 0);
  EXPECT_NE(refusal([&] { make(); }).find("plan has 40 words, this batch needs"),
            std::string::npos);
  for (const std::int32_t word : words) EXPECT_EQ(word, 0);
}

TEST_F(PlanTest, AWindowOverEveryContextIsNone) {
  group.window = INT64_MAX;
  make();
  EXPECT_EQ(summarize(int_tensor(words)).group.window, INT32_MAX);
  EXPECT_EQ(summarize(int_tensor(words)).total_work, [&] {
    group.window.reset();
    make();
    return summarize(int_tensor(words)).total_work;
  }());
}

TEST_F(PlanTest, BadInputIsRefused) {
  group.window = 0;
  EXPECT_NE(refusal([&] { make(); }).find("window is 0, expected 1 or more"), std::string::npos);
  group = group_32_8();
  group.num_kv_heads = 5;
  EXPECT_NE(refusal([&] { make(); }).find("multiple of 5"), std::string::npos);
  group = group_32_8();
  lens[2] = -1;
  EXPECT_NE(refusal([&] { make(); }).find("kv_lens[2] is -1"), std::string::npos);
  lens[2] = 3;
  cu[1] = 3;
  EXPECT_NE(refusal([&] { make(); }).find("cumulative lengths do not fall"), std::string::npos);
  cu[1] = 1;
  EXPECT_NE(refusal([&] {
              make_plan({.group = group,
                         .cu_seqlens_q = int_tensor(cu),
                         .kv_lens = int_tensor(lens),
                         .fixed_split = 100,
                         .plan = int_tensor(words)});
            }).find("fixed_split is 100"),
            std::string::npos);
}

}  // namespace
}  // namespace hpcattn
