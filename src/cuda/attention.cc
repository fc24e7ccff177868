// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/attention.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "kernels/sm90/decode/params.h"
#include "kernels/sm90/prefill/params.h"
#include "src/common/check.h"
#include "src/common/counter.h"
#include "src/cuda/attention_params.h"
#include "src/cuda/kernel_table.h"
#include "src/cuda/plan.h"
#include "src/cuda/tensor_map.h"

namespace hpcattn::cuda {
namespace {

/// Until Hopper's kernels are chosen by default, HPCATTN_KERNELS asks for one: "sm90" for that of
/// decode, "prefill".
bool asked_for(std::string_view kernel) {
  static const std::string asked = [] {
    const char* value = std::getenv("HPCATTN_KERNELS");
    return std::string(value == nullptr ? "" : value);
  }();
  return asked == kernel;
}

/// K or V as the copy engine sees it.
Tensor as_pages(const AttentionProblem& problem, const Tensor& kv) {
  return is_packed(problem) ? as_one_page(kv) : kv;
}

bool takes_tensor_maps(const AttentionProblem& problem, const DeviceInfo& device) {
  return device.major == 9 && device.minor == 0 && tensor_map_takes(as_pages(problem, problem.k)) &&
         tensor_map_takes(as_pages(problem, problem.v)) && has_tensor_maps();
}

/// Packed rows of a KV head that a request has on average. The host knows no lengths, and chooses
/// kernels by this; each kernel serves any number.
std::int64_t rows_of_request(const AttentionProblem& problem, const AttentionGroup& group) {
  const std::int64_t rows = problem.q.size(0) * (group.num_q_heads / group.num_kv_heads);
  const std::int64_t num_requests = std::max<std::int64_t>(problem.cu_seqlens_q.size(0) - 1, 1);
  return (rows + num_requests - 1) / num_requests;
}

/// Whether Hopper's decode kernel takes a call. Where KV is cut at fixed places a request's bits
/// must not follow from its batch, as this choice does.
bool takes_decode(const AttentionProblem& problem, std::int64_t rows, const DecodeSpec& spec,
                  std::int64_t fixed_split, const DeviceInfo& device) {
  return asked_for("sm90") && fixed_split == 0 && !is_packed(problem) && rows <= spec.rows &&
         decode_takes(spec) && takes_tensor_maps(problem, device);
}

/// Whether Hopper's prefill kernel takes a call, of any number of rows.
bool takes_prefill(const AttentionProblem& problem, const PrefillSpec& spec,
                   const DeviceInfo& device) {
  return asked_for("prefill") && prefill_takes(spec) && takes_tensor_maps(problem, device);
}

void launch_attention(const AttentionProblem& problem, const AttentionGroup& group,
                      const Tensor& plan, const plan::DeviceBound& bound, std::int64_t fixed_split,
                      const Execution& execution) {
  static KernelTable<AttentionSpec> generic_kernels;
  static KernelTable<DecodeSpec> decode_kernels;
  static KernelTable<PrefillSpec> prefill_kernels;
  static Counter generic_launches("cuda/generic/attention");
  static Counter decode_launches("cuda/sm90/decode");
  static Counter prefill_launches("cuda/sm90/prefill");
  const int device = problem.q.device().index;
  const DeviceInfo& info = device_info(device);
  const AttentionFeatures features{
      .softcap = problem.options.softcap > 0.0,
      .alibi = problem.options.alibi_slopes.defined(),
      .unaligned_kv = !rows_aligned(problem.k, 16) || !rows_aligned(problem.v, 16)};
  const std::int64_t rows = rows_of_request(problem, group);
  const DecodeSpec spec{.attention = attention_spec(group, features, shared_budget(info)),
                        .page_size = group.page_size,
                        .rows = rows <= 16 ? 16 : 32};
  const PrefillSpec wide_spec = prefill_spec(group, features, info.shared_bytes_per_cta);
  const auto variant = [](const auto& s) { return variant_of(s); };

  const std::int64_t row_floats = std::int64_t{group.head_dim} + 1;
  const auto bytes = static_cast<std::size_t>(bound.partial_rows * row_floats) * sizeof(float);
  const Workspace partials(execution, device, std::max<std::size_t>(bytes, 16));
  const PartialRoom room{.memory = static_cast<float*>(partials.data()),
                         .rows = bound.partial_rows};
  const AttentionParams params = attention_params(problem, group, plan, room);
  const auto ctas = static_cast<unsigned>(plan_workers(device));
  if (takes_decode(problem, rows, spec, fixed_split, info)) {
    const Kernel& kernel = decode_kernels.get(device, spec, variant);
    const int box_tokens = decode_layout(spec).box_tokens;
    launch(kernel, {ctas, 1, 1}, execution,
           DecodeParams{.attention = params,
                        .k_map = page_map(problem.k, box_tokens, BoxLines::kAll),
                        .v_map = page_map(problem.v, box_tokens, BoxLines::kAll)},
           /*programmatic=*/true);
    decode_launches.add();
  } else if (takes_prefill(problem, wide_spec, info)) {
    const Kernel& kernel = prefill_kernels.get(device, wide_spec, variant);
    const int box_tokens = prefill_layout(wide_spec).box_tokens;
    launch(
        kernel, {ctas / plan::kCtasPerSm, 1, 1}, execution,
        PrefillParams{.attention = params,
                      .k_map = page_map(as_pages(problem, problem.k), box_tokens, BoxLines::kOne),
                      .v_map = page_map(as_pages(problem, problem.v), box_tokens, BoxLines::kOne)},
        /*programmatic=*/true);
    prefill_launches.add();
  } else {
    const Kernel& kernel = generic_kernels.get(device, spec.attention, variant);
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
  const PlanCapacity capacity{.max_requests = problem.cu_seqlens_q.size(0) - 1,
                              .max_tokens = problem.q.size(0),
                              .max_kv_len = std::max<std::int64_t>(most_kv_tokens(problem), 1),
                              .fixed_split = fixed_split,
                              .device = problem.q.device()};
  const plan::DeviceBound bound = plan_bound(group, capacity);
  if (plan.defined()) {
    launch_attention(problem, group, plan, bound, fixed_split, execution);
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
  launch_attention(problem, group, made, bound, fixed_split, execution);
}

}  // namespace hpcattn::cuda
