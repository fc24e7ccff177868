// SPDX-License-Identifier: Apache-2.0
// The plan of a step: how the batch is cut into tasks, and which KV ranges are split and combined.
// It is made once a step for each attention group and serves all layers of that group. It lives in
// an int32 tensor of the caller's, so it can be updated in place. docs/plan.md explains the cut.
//
//   AttentionGroup group = group_of(args);
//   std::vector<int32_t> words(plan_words(group, capacity));
//   make_plan({.group = group, .cu_seqlens_q = cu, .kv_lens = lens, .plan = plan_tensor});
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "hpcattn/attention.h"

namespace hpcattn {

/// What all layers that share a plan have in common. A plan is refused by a call of another group.
struct AttentionGroup {
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int page_size = 0;  // 0: packed K and V, no pages
  DType q_dtype = DType::kFloat32;
  DType kv_dtype = DType::kFloat32;
  bool causal = true;
  std::optional<std::int64_t> window;
  friend bool operator==(const AttentionGroup&, const AttentionGroup&) = default;
};

AttentionGroup group_of(const PagedAttentionArgs& args);
AttentionGroup group_of(const PackedAttentionArgs& args);

/// "32:8 heads, head_dim 128, page 16, q bfloat16, kv float8_e4m3, causal, window 4096".
std::string to_string(const AttentionGroup& group);

/// The largest batch that a plan tensor must be able to hold.
struct PlanCapacity {
  std::int64_t max_requests = 0;
  std::int64_t max_tokens = 0;  // query tokens of a step
  std::int64_t max_kv_len = 0;  // KV tokens of one request; used with fixed_split alone
  std::int64_t fixed_split = 0;
  int num_workers = 0;  // CPU: threads; 0: as Execution{} resolves it
  Device device{};      // where the plan is made and used
};

/// int32 words that a plan tensor of this capacity has.
std::int64_t plan_words(const AttentionGroup& group, const PlanCapacity& capacity);

struct PlanArgs {
  AttentionGroup group;
  Tensor cu_seqlens_q;  // [num_requests + 1] int32
  Tensor kv_lens;       // [num_requests] int32
  /// KV tokens of a split, a multiple of 64, whatever the batch; makes a request's bits independent
  /// of the batch around it. 0: as balances best.
  std::int64_t fixed_split = 0;
  Tensor plan;  // [plan_words or more] int32, contiguous; overwritten
};

/// Throws InvalidArgument where the tensor is too small, or the lengths are out of order.
void make_plan(const PlanArgs& args, const Execution& execution = {});

/// For people and tests: what a plan says.
struct PlanSummary {
  AttentionGroup group;
  std::int64_t num_requests = 0;
  std::int64_t num_tokens = 0;
  std::int64_t num_tasks = 0;
  std::int64_t num_partials = 0;  // tasks whose result is combined with others
  std::int64_t num_combines = 0;
  std::int64_t longest_task =
      0;                        // in pairs of row and KV token, few rows weighing as many as a read
  std::int64_t total_work = 0;  // the same, over all tasks
};

/// Throws InvalidArgument when the tensor holds no plan.
PlanSummary summarize(const Tensor& plan);

}  // namespace hpcattn
