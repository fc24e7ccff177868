// SPDX-License-Identifier: Apache-2.0
// A plan with memory of its own.
#pragma once

#include "hpcattn/plan.h"
#include "src/testing/guarded_tensor.h"

namespace hpcattn::testkit {

struct OwnedPlan {
  GuardedTensor words;
  PlanSummary summary;
  operator const Tensor&() const { return words; }  // NOLINT: it stands for its tensor
};

/// For `args`, made by `num_workers` threads. The tensor has exactly plan_words() words, between
/// guards.
template <typename Args>
OwnedPlan plan_for(const Args& args, const Tensor& kv_lens, std::int64_t fixed_split,
                   int num_workers) {
  const AttentionGroup group = group_of(args);
  PlanCapacity capacity;
  capacity.max_requests = kv_lens.size(0);
  capacity.max_tokens = args.q.size(0);
  capacity.fixed_split = fixed_split;
  capacity.num_workers = num_workers;
  capacity.max_kv_len = 1;
  for (std::int64_t r = 0; r < kv_lens.size(0); ++r) {
    capacity.max_kv_len =
        std::max<std::int64_t>(capacity.max_kv_len, kv_lens.data_as<std::int32_t>()[r]);
  }
  OwnedPlan plan;
  plan.words = GuardedTensor(DType::kInt32, {plan_words(group, capacity)});
  Execution execution;
  execution.num_threads = num_workers;
  make_plan({group, args.cu_seqlens_q, kv_lens, fixed_split, plan.words}, execution);
  plan.summary = summarize(plan.words);
  return plan;
}

inline OwnedPlan plan_for(const PagedAttentionArgs& args, std::int64_t fixed_split,
                          int num_workers = 1) {
  return plan_for(args, args.kv_lens, fixed_split, num_workers);
}

}  // namespace hpcattn::testkit
