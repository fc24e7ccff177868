// SPDX-License-Identifier: Apache-2.0
// paged_attention and packed_attention: every argument is checked here, before anything is written.
#include "hpcattn/attention.h"

#include <cmath>
#include <vector>

#include "hpcattn/plan.h"
#include "src/common/check.h"
#include "src/common/counter.h"
#include "src/cpu/attention/attention.h"
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

/// Runs the plan that was given, or one made here.
void run(cpu::AttentionProblem problem, const Tensor& given_plan, const AttentionGroup& group,
         const Execution& execution) {
  std::vector<std::int32_t> words;
  Tensor plan = given_plan;
  if (!plan.defined()) {
    const PlanCapacity capacity{.max_requests = problem.kv_lens.size(0),
                                .max_tokens = problem.q.size(0),
                                .num_workers = num_threads(execution)};
    words.resize(static_cast<std::size_t>(plan_words(group, capacity)));
    plan =
        Tensor::contiguous(words.data(), DType::kInt32, {static_cast<std::int64_t>(words.size())});
    make_plan({.group = group,
               .cu_seqlens_q = problem.cu_seqlens_q,
               .kv_lens = problem.kv_lens,
               .plan = plan},
              execution);
  }
  problem.plan = plan::view_for(plan, group, problem.cu_seqlens_q, problem.kv_lens);
  if (group.window) problem.options.window = group.window;
  cpu::run_attention(problem, execution);
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
  run({.q = args.q,
       .k = args.k_cache,
       .v = args.v_cache,
       .page_table = args.page_table,
       .cu_seqlens_q = args.cu_seqlens_q,
       .cu_seqlens_k = {},
       .kv_lens = args.kv_lens,
       .out = args.out,
       .lse = args.lse,
       .options = args.options,
       .plan = {}},
      args.plan, group_of(args), execution);
  calls.add();
}

void packed_attention(const PackedAttentionArgs& args, const Execution& execution) {
  static Counter calls("packed_attention");
  ops::check_packed_attention(args);
  const std::int64_t num_requests = args.cu_seqlens_k.size(0) - 1;
  std::vector<std::int32_t> kv_lens(static_cast<std::size_t>(num_requests));
  for (std::int64_t i = 0; i < num_requests; ++i) {
    kv_lens[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(
        ops::index_at(args.cu_seqlens_k, i + 1) - ops::index_at(args.cu_seqlens_k, i));
  }
  run({.q = args.q,
       .k = args.k,
       .v = args.v,
       .page_table = {},
       .cu_seqlens_q = args.cu_seqlens_q,
       .cu_seqlens_k = args.cu_seqlens_k,
       .kv_lens = Tensor::contiguous(kv_lens.data(), DType::kInt32, {num_requests}),
       .out = args.out,
       .lse = args.lse,
       .options = args.options,
       .plan = {}},
      args.plan, group_of(args), execution);
  calls.add();
}

}  // namespace hpcattn
