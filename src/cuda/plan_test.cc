// SPDX-License-Identifier: Apache-2.0
// The host's side of a GPU's plan: what is refused before the launch, what is launched, and how a
// plan is read back. The planner itself: src/plan/balance_test.cc.
#include "src/cuda/plan.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "hpcattn/counters.h"
#include "src/cuda/test_fakes.h"
#include "src/plan/serial_cta.h"

namespace hpcattn::cuda {
namespace {

constexpr Device kGpu{DeviceType::kCuda, 0};

AttentionGroup group_64_8() {
  AttentionGroup group;
  group.num_q_heads = 64;
  group.num_kv_heads = 8;
  group.head_dim = 128;
  group.page_size = 16;
  group.q_dtype = group.kv_dtype = DType::kBFloat16;
  return group;
}

/// A batch whose memory the stand-in of the driver takes for a GPU's.
struct Batch {
  std::vector<std::int32_t> cu{0, 1, 2, 34};
  std::vector<std::int32_t> lens{131072, 17, 3000};
  std::vector<std::int32_t> words;
  AttentionGroup group = group_64_8();
  PlanCapacity capacity{.max_requests = 3, .max_tokens = 34, .max_kv_len = 131072, .device = kGpu};

  Tensor tensor(std::vector<std::int32_t>& values, Device device = kGpu) {
    return Tensor::contiguous(values.data(), DType::kInt32, {std::int64_t(values.size())}, device);
  }
  PlanArgs args() {
    words.resize(std::size_t(plan_words(group, capacity)));
    return {
        .group = group, .cu_seqlens_q = tensor(cu), .kv_lens = tensor(lens), .plan = tensor(words)};
  }
};

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

void expect_in(const std::string& part, const std::string& text) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(CudaPlan, IsOneLaunchThatMayBeCaptured) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes(folder);
    Batch batch;
    const PlanArgs args = batch.args();
    fake().set_capturing(1);
    const Execution execution{.stream = reinterpret_cast<void*>(5)};
    make_plan(args, execution);
    fake().take_log();
    reset_counters();
    make_plan(args, execution);
    const std::string log = fake().take_log();
    expect_in("launch_ex 1x1x1 attribute 6 1\n", log);
    EXPECT_EQ(log.find("sync"), std::string::npos) << log;
    EXPECT_EQ(counters().at("cuda/plan"), 1);
    EXPECT_EQ(counters().at("compilations"), 0);
  });
}

TEST(CudaPlan, WhatTheHostKnowsIsRefusedBeforeTheLaunch) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes(folder);
    Batch batch;
    const PlanArgs good = batch.args();
    PlanArgs bad = good;
    bad.plan = good.plan.slice(0, 1, good.plan.size(0) - 1);
    expect_in("no multiple of 16 bytes", refusal([&] { make_plan(bad); }));
    bad.plan = good.plan.slice(0, 0, 20);
    expect_in("plan has 20 words, a plan of 3 requests has ", refusal([&] { make_plan(bad); }));
    bad = good;
    bad.cu_seqlens_q = batch.tensor(batch.cu, {DeviceType::kCuda, 1});
    expect_in("cu_seqlens_q is on cuda:1", refusal([&] { make_plan(bad); }));
    bad = good;
    bad.plan = batch.tensor(batch.words, {});
    expect_in("plan is on cpu", refusal([&] { make_plan(bad); }));
    bad = good;
    bad.fixed_split = 100;
    expect_in("fixed_split is 100", refusal([&] { make_plan(bad); }));
    const std::string log = fake().take_log();
    EXPECT_EQ(log.find("launch"), std::string::npos) << log;
  });
}

TEST(CudaPlan, LengthsAreLookedAtWhereThatIsAskedFor) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes(folder);
    Batch batch;
    batch.lens[1] = -4;
    const PlanArgs args = batch.args();
    expect_in("kv_lens[1] is -4", refusal([&] { make_plan(args, {.check_values = true}); }));
    batch.lens[1] = 4;
    batch.cu[1] = 3;
    expect_in("cu_seqlens_q", refusal([&] { make_plan(args, {.check_values = true}); }));
    batch.cu[1] = 1;
    EXPECT_NO_THROW(make_plan(args, {.check_values = true}));
  });
}

TEST(CudaPlan, IsReadBackForPeople) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes(folder);
    Batch batch;
    const PlanArgs args = batch.args();
    expect_in("holds no plan of this version", refusal([&] { summarize(args.plan); }));
    // What the kernel would do.
    plan::BalanceInput in;
    in.lengths = {.cu_seqlens_q = batch.cu.data(), .kv_lens = batch.lens.data(), .num_requests = 3};
    in.shape = plan_shape(batch.group, 0);
    in.layout = {.num_requests = 3, .words = args.plan.size(0)};
    in.num_workers = plan_workers(0);
    in.plan = batch.words.data();
    in.header = plan::header_of(batch.group);
    const auto memory = std::make_unique<plan::BalanceMemory>();
    plan::SerialCta cta(1024);
    plan::Balancer<plan::SerialCta>(cta, in, *memory).run();

    const PlanSummary summary = summarize(args.plan);
    EXPECT_EQ(summary.group, batch.group);
    EXPECT_EQ(summary.num_requests, 3);
    EXPECT_EQ(summary.num_tokens, 34);
    EXPECT_GT(summary.num_combines, 0);
    EXPECT_GT(summary.num_partials, summary.num_combines);
    const PlanCopy copy(args.plan);
    EXPECT_EQ(copy.view().tasks.size(), std::size_t(summary.num_tasks));
    EXPECT_EQ(copy.view().combines.front().partial, 0);
    expect_in("expected cpu", refusal([&] { plan::view(args.plan); }));

    batch.words[4] = 1 << 30;  // num_tasks
    expect_in("was changed since", refusal([&] { summarize(args.plan); }));
  });
}

TEST(CudaPlan, CapacitiesPastAllMemoryAreRefused) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes(folder);
    Batch batch;
    batch.capacity.max_tokens = INT32_MAX;
    batch.capacity.max_kv_len = INT32_MAX;
    batch.capacity.fixed_split = 64;
    expect_in("tasks. Plan for less", refusal([&] { plan_words(batch.group, batch.capacity); }));
    batch.group.num_q_heads = batch.group.num_kv_heads = INT32_MAX;
    batch.capacity.fixed_split = 0;
    expect_in("tasks. Plan for less", refusal([&] { plan_words(batch.group, batch.capacity); }));
  });
}

TEST(CudaPlan, EachVariantHasItsOwnSource) {
  const std::vector<KernelVariant> variants = all_plan_variants();
  ASSERT_EQ(variants.size(), 2U);
  for (std::size_t i = 1; i < variants.size(); ++i) {
    EXPECT_NE(variants[i].source, variants[0].source);
    EXPECT_NE(variants[i].name, variants[0].name);
  }
}

}  // namespace
}  // namespace hpcattn::cuda
