// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/attention.h"

#include <algorithm>

#include "kernels/sm90/decode/params.h"
#include "kernels/sm90/prefill/params.h"
#include "src/common/check.h"
#include "src/common/counter.h"
#include "src/cuda/attention_params.h"
#include "src/cuda/kernel_table.h"
#include "src/cuda/plan.h"
#include "src/cuda/tensor_map.h"
#include "src/plan/whole_tiles.h"

namespace hpcattn::cuda {
namespace {

/// K or V as the copy engine sees it.
Tensor as_pages(const AttentionProblem& problem, const Tensor& kv) {
  return is_packed(problem) ? as_one_page(kv) : kv;
}

std::int64_t rows_of(const AttentionProblem& problem, const AttentionGroup& group) {
  return rows_of_request(problem.q.size(0), group.num_q_heads / group.num_kv_heads,
                         problem.cu_seqlens_q.size(0) - 1);
}

/// The decode kernel's spec where that takes the call. Where KV is cut at fixed places a request's
/// bits must not follow from its batch, as this choice does.
std::optional<DecodeSpec> decode_spec_of(const AttentionProblem& problem,
                                         const AttentionGroup& group,
                                         const AttentionSpec& attention, std::int64_t fixed_split,
                                         const DeviceInfo& device) {
  if (fixed_split > 0 || is_packed(problem) || !has_tensor_maps() || !tensor_map_takes(problem.k) ||
      !tensor_map_takes(problem.v)) {
    return {};
  }
  return decode_spec(attention, group.page_size, rows_of(problem, group), arch_of(device));
}

AttentionFeatures features_of(const AttentionProblem& problem) {
  return {.softcap = problem.options.softcap > 0.0,
          .alibi = problem.options.alibi_slopes.defined(),
          .unaligned_kv = !rows_aligned(problem.k, 16) || !rows_aligned(problem.v, 16)};
}

/// The prefill kernel's spec where that takes the call.
std::optional<PrefillSpec> prefill_spec_of(const AttentionProblem& problem,
                                           const AttentionGroup& group, std::int64_t fixed_split,
                                           const DeviceInfo& device) {
  const PrefillSpec spec = prefill_spec(group, features_of(problem), device.shared_bytes_per_cta);
  if (!prefill_is_chosen(spec, rows_of(problem, group), fixed_split, arch_of(device)) ||
      !has_tensor_maps()) {
    return {};
  }
  const int line_bytes = prefill_layout(spec).line_bytes;
  if (!tensor_map_takes(as_pages(problem, problem.k), line_bytes) ||
      !tensor_map_takes(as_pages(problem, problem.v), line_bytes)) {
    return {};
  }
  return spec;
}

/// Whether a call that the prefill kernel takes needs no plan.
bool needs_no_plan(const AttentionProblem& problem, const AttentionGroup& group,
                   std::int64_t fixed_split, const DeviceInfo& device) {
  const plan::BatchSizes sizes{.num_requests = problem.cu_seqlens_q.size(0) - 1,
                               .num_tokens = problem.q.size(0),
                               .most_kv = most_kv_tokens(problem)};
  if (sizes.num_requests > kMostWholeRequests) return false;
  const plan::PrefillCrew crew = prefill_crew(group, fixed_split, arch_of(device), device.num_sms);
  plan::PlanShape shape = plan_shape(group, fixed_split);
  shape.costs = crew.costs;
  return plan::whole_tiles_suffice(shape, sizes, crew.num_workers);
}

/// `prefill`: where that kernel takes the call. Without a plan: a call of it that needs none.
void launch_attention(const AttentionProblem& problem, const AttentionGroup& group,
                      const std::optional<PrefillSpec>& prefill, const Tensor& plan,
                      const plan::DeviceBound& bound, std::int64_t fixed_split,
                      const Execution& execution) {
  static KernelTable<AttentionSpec> generic_kernels;
  static KernelTable<DecodeSpec> decode_kernels;
  static KernelTable<PrefillSpec> prefill_kernels;
  static Counter generic_launches(kGenericName);
  static Counter decode_launches(kDecodeName);
  static Counter prefill_launches(kPrefillName);
  const int device = problem.q.device().index;
  const DeviceInfo& info = device_info(device);
  const AttentionSpec spec = attention_spec(group, features_of(problem), shared_budget(info));
  const auto variant = [](const auto& s) { return variant_of(s); };

  const std::int64_t row_floats = std::int64_t{group.head_dim} + 1;
  const auto bytes = static_cast<std::size_t>(bound.partial_rows * row_floats) * sizeof(float);
  const Workspace partials(execution, device, std::max<std::size_t>(bytes, 16));
  const PartialRoom room{.memory = static_cast<float*>(partials.data()),
                         .rows = bound.partial_rows};
  const AttentionParams params = attention_params(problem, group, plan, room);
  const auto ctas = static_cast<unsigned>(plan_workers(device));
  if (prefill) {
    const Kernel& kernel = prefill_kernels.get(device, *prefill, variant);
    const PrefillLayout layout = prefill_layout(*prefill);
    const auto map_of = [&](const Tensor& kv) {
      return page_map(as_pages(problem, kv), layout.box_tokens, BoxLines::kOne, layout.line_bytes);
    };
    launch(
        kernel, {ctas / plan::kCtasPerSm, 1, 1}, execution,
        PrefillParams{.attention = params, .k_map = map_of(problem.k), .v_map = map_of(problem.v)},
        /*programmatic=*/true);
    prefill_launches.add();
  } else if (const auto decode = decode_spec_of(problem, group, spec, fixed_split, info)) {
    const Kernel& kernel = decode_kernels.get(device, *decode, variant);
    launch(kernel, {ctas, 1, 1}, execution,
           DecodeParams{.attention = params,
                        .k_map = page_map(problem.k, decode->box_tokens, BoxLines::kAll),
                        .v_map = page_map(problem.v, decode->box_tokens, BoxLines::kAll)},
           /*programmatic=*/true);
    decode_launches.add();
  } else {
    const Kernel& kernel = generic_kernels.get(device, spec, variant);
    launch(kernel, {ctas, 1, 1}, execution, params, /*programmatic=*/info.major >= 9);
    generic_launches.add();
  }
}

}  // namespace

void run_attention(const AttentionProblem& problem, const AttentionGroup& group, const Tensor& plan,
                   std::int64_t fixed_split, const Execution& execution) {
  const int device = problem.q.device().index;
  check_faults(device);
  const std::int64_t group_size = problem.q.size(1) / problem.k.size(-2);
  check(
      problem.q.size(0) * group_size <= INT32_MAX, "attention: q is ",
      [&] { return to_string(problem.q); }, ", which is over 2^31 rows a KV head. Cut the batch.");
  if (problem.q.size(0) == 0) return;
  const DeviceGuard guard(device);
  const DeviceInfo& info = device_info(device);
  const auto prefill = prefill_spec_of(problem, group, fixed_split, info);
  if (!plan.defined() && prefill && needs_no_plan(problem, group, fixed_split, info)) {
    launch_attention(problem, group, prefill, {}, {}, fixed_split, execution);
    return;
  }
  const PlanCapacity capacity{.max_requests = problem.cu_seqlens_q.size(0) - 1,
                              .max_tokens = problem.q.size(0),
                              .max_kv_len = std::max<std::int64_t>(most_kv_tokens(problem), 1),
                              .fixed_split = fixed_split,
                              .device = problem.q.device()};
  const plan::DeviceBound bound = plan_bound(group, capacity);
  if (plan.defined()) {
    launch_attention(problem, group, prefill, plan, bound, fixed_split, execution);
    return;
  }
  const Workspace words(execution, device, static_cast<std::size_t>(bound.words) * 4);
  const Tensor made =
      Tensor::contiguous(words.data(), DType::kInt32, {bound.words}, problem.q.device());
  const bool packed = is_packed(problem);
  make_plan({.group = group,
             .cu_seqlens_q = problem.cu_seqlens_q,
             .kv_lens = packed ? problem.cu_seqlens_k : problem.kv_lens,
             .fixed_split = fixed_split,
             .plan = made},
            packed ? KvLens::kCumulative : KvLens::kEach, execution);
  launch_attention(problem, group, prefill, made, bound, fixed_split, execution);
}

}  // namespace hpcattn::cuda
