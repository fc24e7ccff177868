// SPDX-License-Identifier: Apache-2.0
// paged_attention and packed_attention: every argument is checked here, before anything is written.
#include "hpcattn/attention.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "hpcattn/plan.h"
#include "src/common/check.h"
#include "src/common/counter.h"
#include "src/cpu/attention/attention.h"
#include "src/cuda/attention.h"
#include "src/ops/check_attention.h"
#include "src/ops/check_tensor.h"

namespace hpcattn {
namespace {

AttentionGroup group_of(const Tensor& q, const Tensor& k, std::int64_t page_size,
                        const AttentionOptions& options) {
  AttentionGroup group;
  group.num_q_heads = static_cast<int>(q.size(1));
  group.num_kv_heads = static_cast<int>(k.size(-2));
  group.head_dim = static_cast<int>(q.size(2));
  group.page_size = static_cast<int>(page_size);
  group.q_dtype = q.dtype();
  group.kv_dtype = k.dtype();
  group.causal = options.causal;
  if (options.window) group.window = std::min<std::int64_t>(*options.window, INT32_MAX);
  return group;
}

void check_fixed_split(std::string_view op, std::int64_t fixed_split) {
  check(fixed_split >= 0 && fixed_split % plan::kTileKv == 0, op, ": fixed_split is ", fixed_split,
        ", expected 0 or a multiple of ", plan::kTileKv, ".");
}

/// On the CPU: the plan that was given, or one made here.
void run_on_cpu(const AttentionProblem& problem, const Tensor& given_plan,
                const AttentionGroup& group, std::int64_t fixed_split, const Execution& execution) {
  std::vector<std::int32_t> words;
  Tensor plan = given_plan;
  if (!plan.defined()) {
    PlanCapacity capacity{.max_requests = problem.kv_lens.size(0),
                          .max_tokens = problem.q.size(0),
                          .max_kv_len = 1,
                          .fixed_split = fixed_split,
                          .num_workers = num_threads(execution)};
    for (std::int64_t i = 0; fixed_split > 0 && i < capacity.max_requests; ++i) {
      capacity.max_kv_len = std::max(capacity.max_kv_len, ops::index_at(problem.kv_lens, i));
    }
    words.resize(static_cast<std::size_t>(plan_words(group, capacity)));
    plan =
        Tensor::contiguous(words.data(), DType::kInt32, {static_cast<std::int64_t>(words.size())});
    make_plan({.group = group,
               .cu_seqlens_q = problem.cu_seqlens_q,
               .kv_lens = problem.kv_lens,
               .fixed_split = fixed_split,
               .plan = plan},
              execution);
  }
  const plan::PlanView view = plan::view_for(plan, group, problem.cu_seqlens_q, problem.kv_lens);
  cpu::run_attention(problem, view, execution);
}

void run(AttentionProblem problem, const Tensor& plan, const AttentionGroup& group,
         std::int64_t fixed_split, const Execution& execution) {
  if (group.window) problem.options.window = group.window;
  if (problem.q.device().type == DeviceType::kCuda) {
    cuda::run_attention(problem, group, plan, fixed_split, execution);
  } else {
    run_on_cpu(problem, plan, group, fixed_split, execution);
  }
}

}  // namespace

AttentionGroup group_of(const PagedAttentionArgs& args) {
  return group_of(args.q, args.k_cache, args.k_cache.size(1), args.options);
}

AttentionGroup group_of(const PackedAttentionArgs& args) {
  return group_of(args.q, args.k, 0, args.options);
}

void paged_attention(const PagedAttentionArgs& args, const Execution& execution) {
  static Counter calls("paged_attention");
  ops::check_paged_attention(args);
  check_fixed_split("paged_attention", args.fixed_split);
  ops::check_paged_attention_values(args, execution);
  run({.q = args.q,
       .k = args.k_cache,
       .v = args.v_cache,
       .page_table = args.page_table,
       .cu_seqlens_q = args.cu_seqlens_q,
       .cu_seqlens_k = {},
       .kv_lens = args.kv_lens,
       .out = args.out,
       .lse = args.lse,
       .options = args.options},
      args.plan, group_of(args), args.fixed_split, execution);
  calls.add();
}

void packed_attention(const PackedAttentionArgs& args, const Execution& execution) {
  static Counter calls("packed_attention");
  ops::check_packed_attention(args);
  check_fixed_split("packed_attention", args.fixed_split);
  ops::check_packed_attention_values(args, execution);
  const std::int64_t num_requests = args.cu_seqlens_k.size(0) - 1;
  AttentionProblem problem{.q = args.q,
                           .k = args.k,
                           .v = args.v,
                           .page_table = {},
                           .cu_seqlens_q = args.cu_seqlens_q,
                           .cu_seqlens_k = args.cu_seqlens_k,
                           .kv_lens = {},
                           .out = args.out,
                           .lse = args.lse,
                           .options = args.options};
  std::vector<std::int32_t> kv_lens;
  if (args.q.device().type == DeviceType::kCpu) {
    for (std::int64_t i = 0; i < num_requests; ++i) {
      kv_lens.push_back(static_cast<std::int32_t>(ops::index_at(args.cu_seqlens_k, i + 1) -
                                                  ops::index_at(args.cu_seqlens_k, i)));
    }
    problem.kv_lens = Tensor::contiguous(kv_lens.data(), DType::kInt32, {num_requests});
  }
  run(problem, args.plan, group_of(args), args.fixed_split, execution);
  calls.add();
}

}  // namespace hpcattn
