// SPDX-License-Identifier: Apache-2.0
// The planner's kernel gives word for word what the same code gives on the host.
#include <gtest/gtest.h>

#include <cstring>

#include "src/common/check.h"
#include "src/cuda/plan.h"
#include "src/gpu_tests/expect.h"
#include "src/testing/device_call.h"
#include "src/testing/device_plan.h"
#include "src/testing/guarded_tensor.h"
#include "src/testing/random.h"

namespace hpcattn {
namespace {

using testkit::DevicePlan;
using testkit::GuardedTensor;
using testkit::PlanBatch;

struct PlanCase {
  PlanBatch batch;
  AttentionGroup group;
  std::int64_t fixed_split = 0;
  bool cumulative = false;  // KV lengths as cu_seqlens_k
};

/// The tensors of a call, for the mirror of a GPU's memory.
struct PlanCall {
  PlanArgs args;
  template <typename Body>
  friend void for_each_tensor(PlanCall& call, Body body) {
    for (Tensor* tensor : {&call.args.cu_seqlens_q, &call.args.kv_lens, &call.args.plan}) {
      body(*tensor);
    }
  }
};

template <typename T>
std::string unless_alike(const char* what, const T* found, const T* expected, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (std::memcmp(&found[i], &expected[i], sizeof(T)) != 0) {
      return message(what, " ", i, " of ", count, " is not the host's.\n");
    }
  }
  return "";
}

/// "" when the GPU's plan is the host's.
std::string run(testkit::GpuLane& lane, const PlanCase& c) {
  const int workers = cuda::plan_workers(0);
  const plan::PlanShape shape = cuda::plan_shape(c.group, c.fixed_split);
  const cuda::DeviceInfo& info = cuda::device_info(0);
  const DevicePlan want = testkit::balance(
      c.batch, shape,
      {.num_workers = workers,
       .num_threads = 1024,
       .prefill = cuda::prefill_crew(c.group, c.fixed_split, cuda::arch_of(info), info.num_sms)});
  if (want.fault.kind != 0) return "the host's plan has a fault\n";
  std::vector<std::int32_t> lens = c.batch.kv_lens;
  if (c.cumulative) {
    lens.assign(1, 0);
    for (std::int32_t len : c.batch.kv_lens) lens.push_back(lens.back() + len);
  }
  const GuardedTensor cu_seqlens_q = GuardedTensor::of_ints(c.batch.cu_seqlens_q);
  const GuardedTensor kv_lens = GuardedTensor::of_ints(lens);
  const std::int64_t words = testkit::bound_of(c.batch, shape, workers).words;
  const GuardedTensor tensor(DType::kInt32, {words}, testkit::GuardSide::kBefore);
  const PlanCall call{{c.group, cu_seqlens_q, kv_lens, c.fixed_split, tensor}};
  std::string report =
      testkit::call_on_gpu(lane, call, [&](const PlanCall& device, const Execution& execution) {
        cuda::make_plan(device.args, c.cumulative ? cuda::KvLens::kCumulative : cuda::KvLens::kEach,
                        execution);
      });
  const auto* found = static_cast<const Tensor&>(tensor).data_as<const std::int32_t>();
  const auto* header = reinterpret_cast<const plan::Header*>(found);
  if (header->num_tasks != want.header.num_tasks ||
      header->num_combines != want.header.num_combines) {
    return report + message(header->num_tasks, " tasks and ", header->num_combines,
                            " combines, expected ", want.header.num_tasks, " and ",
                            want.header.num_combines, ".\n");
  }
  plan::Header want_header = plan::header_of(c.group, c.fixed_split);
  want_header.num_requests = want.header.num_requests;
  want_header.num_tokens = want.header.num_tokens;
  want_header.num_tasks = want.header.num_tasks;
  want_header.num_combines = want.header.num_combines;
  want_header.num_partial_rows = want.header.num_partial_rows;
  want_header.num_partials = want.header.num_partials;
  want_header.lengths_hash[0] = want.header.lengths_hash[0];
  const plan::DeviceLayout layout{.num_requests = c.batch.num_requests(), .words = words};
  report += unless_alike("header", header, &want_header, 1);
  report += unless_alike("task", reinterpret_cast<const plan::Task*>(found + layout.task(0)),
                         want.tasks.data(), want.tasks.size());
  for (std::size_t i = 0; i < want.combines.size(); ++i) {
    report += unless_alike(
        "combine", reinterpret_cast<const plan::Combine*>(found + layout.combine(std::int64_t(i))),
        &want.combines[i], 1);
  }
  return report;
}

AttentionGroup group_of_heads(int q_heads, int kv_heads, int head_dim = 128) {
  AttentionGroup group;
  group.num_q_heads = q_heads;
  group.num_kv_heads = kv_heads;
  group.head_dim = head_dim;
  group.page_size = 16;
  group.q_dtype = group.kv_dtype = DType::kBFloat16;
  return group;
}

TEST(GpuPlans, NamedBatches) {
  std::vector<PlanCase> cases;
  for (const std::int64_t fixed_split : {0, 4096}) {
    for (const PlanBatch& batch :
         {PlanBatch(), PlanBatch().add(0, 0, 5), PlanBatch().add(1, 1024),
          PlanBatch().add(1, 4096, 64), PlanBatch().add(1, 131072).add(1, 4096, 31),
          PlanBatch().add(1, 10'000'000), PlanBatch().add(8192, 8192),
          PlanBatch().add(1, 900, 1023).add(3, 70), PlanBatch().add(1, 900, 1024).add(3, 70),
          PlanBatch().add(1, 100, 70'000), PlanBatch().add(200'000, 200'000),
          PlanBatch().add(0, 0, 3000).add(1, 20, 1025).add(0, 9, 5000).add(300, 40'000)}) {
      cases.push_back({batch, group_of_heads(64, 8), fixed_split});
    }
  }
  testkit::expect_all_right(cases, run);
}

TEST(GpuPlans, RandomBatches) {
  testkit::Rng rng(11);
  std::vector<PlanCase> cases;
  for (int round = 0; round < 1000; ++round) {
    PlanCase c;
    const std::int64_t longest = rng.chance(0.3) ? 50000 : 600;
    for (std::int64_t i = rng.integer(0, rng.chance(0.1) ? 3000 : 60); i > 0; --i) {
      c.batch.add(std::int32_t(rng.integer(0, rng.chance(0.2) ? 300 : 4)),
                  std::int32_t(rng.integer(0, longest)));
    }
    const int kv_heads = int(rng.integer(1, 8));
    c.group = group_of_heads(kv_heads * int(rng.integer(1, 20)), kv_heads,
                             rng.pick(std::vector<int>{64, 128, 256}));
    c.group.causal = rng.chance(0.7);
    if (rng.chance(0.4)) c.group.window = rng.integer(1, 5000);
    c.fixed_split = rng.chance(0.3) ? 64 * rng.integer(1, 30) : 0;
    c.cumulative = rng.chance(0.3);
    cases.push_back(c);
  }
  testkit::expect_all_right(cases, run);
}

TEST(GpuPlans, AThousandPlansAreTheSame) {
  PlanCase c{PlanBatch().add(1, 131072).add(1, 4096, 31).add(600, 3000), group_of_heads(64, 8)};
  testkit::expect_all_right(std::vector<PlanCase>(1000, c), run);
}

}  // namespace
}  // namespace hpcattn
