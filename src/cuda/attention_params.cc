// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/attention_params.h"

#include <atomic>

#include "src/cuda/device.h"
#include "src/cuda/plan.h"
#include "src/ops/query_scale.h"

namespace hpcattn::cuda {
namespace {

const float* floats(const Tensor& tensor) {
  return tensor.defined() ? tensor.data_as<const float>() : nullptr;
}

/// 0 for [1], which serves all heads.
std::int64_t stride_over_heads(const Tensor& tensor) {
  return tensor.defined() && tensor.size(0) > 1 ? tensor.stride(0) : 0;
}

AttentionOutput output_of(const AttentionProblem& problem) {
  const AttentionOptions& options = problem.options;
  AttentionOutput o;
  o.out = problem.out.data();
  o.out_token = problem.out.stride(0);
  o.out_head = problem.out.stride(1);
  o.out_dtype = problem.out.dtype();
  o.out_vectors = rows_aligned(problem.out, 16);
  o.out_pairs = rows_aligned(problem.out, static_cast<std::uintptr_t>(2 * size_bytes(o.out_dtype)));
  if (problem.lse.defined()) {
    o.lse = problem.lse.data_as<float>();
    o.lse_token = problem.lse.stride(0);
    o.lse_head = problem.lse.stride(1);
  }
  if (options.sinks.defined()) {
    o.sinks = options.sinks.data();
    o.sink_dtype = options.sinks.dtype();
    o.sink_stride = options.sinks.stride(0);
  }
  o.v_scale = floats(options.v_scale);
  o.v_scale_stride = stride_over_heads(options.v_scale);
  o.out_scale = floats(options.out_scale);
  return o;
}

void set_keys_and_values(AttentionParams& p, const AttentionProblem& problem) {
  const int token_dim = is_packed(problem) ? 0 : 1;
  p.k = problem.k.data();
  p.v = problem.v.data();
  p.k_token = problem.k.stride(token_dim);
  p.v_token = problem.v.stride(token_dim);
  p.k_head = problem.k.stride(-2);
  p.v_head = problem.v.stride(-2);
  if (is_packed(problem)) {
    p.cu_seqlens_k = problem.cu_seqlens_k.data_as<const std::int32_t>();
    p.cu_k_stride = problem.cu_seqlens_k.stride(0);
    p.page_size = FastDivide(INT32_MAX);  // all tokens on one page
    return;
  }
  p.k_page = problem.k.stride(0);
  p.v_page = problem.v.stride(0);
  p.page_table = problem.page_table.data_as<const std::int32_t>();
  p.table_request = problem.page_table.stride(0);
  p.table_page = problem.page_table.stride(1);
  p.kv_lens = problem.kv_lens.data_as<const std::int32_t>();
  p.kv_lens_stride = problem.kv_lens.stride(0);
  p.num_pages = problem.k.size(0);
  p.page_size = FastDivide(static_cast<std::uint32_t>(problem.k.size(1)));
}

void set_options(AttentionParams& p, const AttentionProblem& problem) {
  const AttentionOptions& options = problem.options;
  p.mask = {.causal = options.causal, .window = options.window.value_or(0)};
  p.scale = static_cast<float>(options.scale);
  p.softcap = static_cast<float>(options.softcap);
  p.alibi_slopes = floats(options.alibi_slopes);
  p.alibi_stride = options.alibi_slopes.defined() ? options.alibi_slopes.stride(0) : 0;
  p.q_scale = floats(options.q_scale);
  const Tensor& q_scale = options.q_scale;
  if (q_scale.defined() && q_scale.rank() > 1) {
    const bool by_request = ops::is_by_request(q_scale);
    p.q_scale_request = by_request ? q_scale.stride(0) : 0;
    p.q_scale_token = by_request ? q_scale.stride(2) : q_scale.stride(0);
    p.q_scale_head = q_scale.stride(1);
    p.q_scale_by_request = by_request;
  }
  p.k_scale = floats(options.k_scale);
  p.k_scale_stride = stride_over_heads(options.k_scale);
}

}  // namespace

bool rows_aligned(const Tensor& tensor, std::uintptr_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(tensor.data()) % bytes != 0) return false;
  const auto element = static_cast<std::uintptr_t>(size_bytes(tensor.dtype()));
  for (int dim = 0; dim + 1 < tensor.rank(); ++dim) {
    if (tensor.size(dim) > 1 &&
        static_cast<std::uintptr_t>(tensor.stride(dim)) * element % bytes != 0) {
      return false;
    }
  }
  return true;
}

std::int64_t most_kv_tokens(const AttentionProblem& problem) {
  if (is_packed(problem)) return problem.k.size(0);
  return problem.page_table.size(1) * problem.k.size(1);
}

AttentionParams attention_params(const AttentionProblem& problem, const AttentionGroup& group,
                                 const Tensor& plan, const PartialRoom& partials) {
  const int device = problem.q.device().index;
  AttentionParams p;
  p.q = problem.q.data();
  p.q_token = problem.q.stride(0);
  p.q_head = problem.q.stride(1);
  p.q_vectors = rows_aligned(problem.q, 16);
  set_keys_and_values(p, problem);
  set_options(p, problem);
  p.group = FastDivide(static_cast<std::uint32_t>(group.num_q_heads / group.num_kv_heads));
  p.layout.num_requests = problem.cu_seqlens_q.size(0) - 1;
  if (plan.defined()) {
    p.plan = plan.data_as<const std::int32_t>();
    p.layout.words = plan.size(0);
  }
  p.group_header = plan::header_of(group);
  p.group_header.num_requests = static_cast<std::int32_t>(p.layout.num_requests);
  p.partial_out = partials.memory;
  p.partial_lse = partials.memory + partials.rows * group.head_dim;
  p.partial_rows = partials.rows;
  static std::atomic<std::uint32_t> calls{0};
  p.call_id = calls.fetch_add(1, std::memory_order_relaxed) + 1;
  p.output = output_of(problem);
  p.num_q_heads = group.num_q_heads;
  p.num_tokens = problem.q.size(0);
  p.cu_seqlens_q = problem.cu_seqlens_q.data_as<const std::int32_t>();
  p.cu_q_stride = problem.cu_seqlens_q.stride(0);
  p.fault = static_cast<Fault*>(fault_mailbox(device));
  return p;
}

}  // namespace hpcattn::cuda
