// SPDX-License-Identifier: Apache-2.0
#include "src/testing/attention_check.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/cpu/reference/numbers.h"
#include "src/cuda/attention.h"
#include "src/cuda/device.h"
#include "src/cuda/kernel.h"
#include "src/testing/compare.h"

namespace hpcattn::testkit {

namespace {

/// Whether Hopper's prefill kernel computes such a call, of rows that the copy engine takes.
bool is_prefill(const Tensor& q, const Tensor& k, const Tensor& cu_seqlens_q,
                std::int64_t fixed_split) {
  const AttentionGroup group{.num_q_heads = static_cast<int>(q.size(1)),
                             .num_kv_heads = static_cast<int>(k.size(-2)),
                             .head_dim = static_cast<int>(q.size(2)),
                             .page_size = k.rank() == 4 ? static_cast<int>(k.size(1)) : 0,
                             .q_dtype = q.dtype(),
                             .kv_dtype = k.dtype()};
  const cuda::DeviceInfo& device = cuda::device_info(0);
  const std::int64_t rows = cuda::rows_of_request(q.size(0), group.num_q_heads / group.num_kv_heads,
                                                  cu_seqlens_q.size(0) - 1);
  return cuda::prefill_is_chosen(cuda::prefill_spec(group, {}, device.shared_bytes_per_cta), rows,
                                 fixed_split, cuda::arch_of(device));
}

}  // namespace

Arithmetic gpu_arithmetic(const Tensor& q, const Tensor& k, const Tensor& cu_seqlens_q,
                          std::int64_t fixed_split) {
  if (q.dtype() == DType::kFloat8E4M3 && is_prefill(q, k, cu_seqlens_q, fixed_split)) {
    constexpr DType kE4M3 = DType::kFloat8E4M3;
    // The largest p of a row is 2^6 at least (PrefillProducts::kLift).
    return {.tensor_cores = true,
            .p_roundoff = reference::unit_roundoff(kE4M3),
            .p_smallest = std::ldexp(reference::smallest(kE4M3), -6),
            .sum_unit = 0x1p-13};
  }
  const DType p = q.dtype() == DType::kBFloat16 ? DType::kBFloat16 : DType::kFloat16;
  return {.tensor_cores = true,
          .p_roundoff = reference::unit_roundoff(p),
          .p_smallest = reference::smallest(p)};
}

std::string check_outputs(const Tensor& out, const Tensor& lse, const AttentionOptions& options,
                          const reference::AttentionResult& want, const std::string& label,
                          const Arithmetic& arithmetic) {
  const double u = reference::unit_roundoff(DType::kFloat32);
  const auto head_dim = static_cast<std::size_t>(out.size(2));
  const auto dim = static_cast<double>(head_dim);
  const double gpu = arithmetic.tensor_cores ? 1.0 : 0.0;
  const double out_scale =
      options.out_scale.defined() ? reference::element(options.out_scale, {0}) : 1.0;

  std::vector<double> stored(want.out.size());
  std::vector<double> out_bound(want.out.size());
  std::vector<double> lse_bound(want.lse.size());
  for (std::size_t row = 0; row < want.lse.size(); ++row) {
    const auto visible = static_cast<double>(want.num_visible[row]);
    const double lse_size = std::isfinite(want.lse[row]) ? std::fabs(want.lse[row]) : 0.0;
    const double score_error = ((2.0 * std::sqrt(dim) + 8.0 + gpu * (dim / 4.0 + 16.0)) * u +
                                arithmetic.sum_unit * (dim / 8.0 + 4.0)) *
                               want.score_magnitude[row];
    const double sum_error = (2.0 * std::sqrt(visible) + 16.0) * u;
    const double p_error = 2.0 * score_error + sum_error +
                           gpu * (visible / 4.0 + 24.0 + 4.0 * lse_size) * u +
                           arithmetic.p_roundoff + arithmetic.sum_unit * (visible / 8.0 + 4.0);
    lse_bound[row] =
        score_error + sum_error + 2.0 * u * lse_size + gpu * (24.0 + 2.0 * lse_size) * u;
    for (std::size_t at = row * head_dim; at < (row + 1) * head_dim; ++at) {
      const double error = (p_error * want.out_magnitude[at] +
                            arithmetic.p_smallest / 2.0 * want.value_magnitude[at]) /
                           out_scale;
      const double exact = want.out[at] / out_scale;
      out_bound[at] = rounded_bound(exact, error, out.dtype());
      const double limit = is_fp8(out.dtype()) ? reference::largest(out.dtype()) : INFINITY;
      stored[at] = std::clamp(exact, -limit, limit);
    }
  }
  std::string report = compare(out, stored, out_bound, label + " out");
  if (report.empty() && lse.defined()) report = compare(lse, want.lse, lse_bound, label + " lse");
  return report;
}

std::string run_and_check(AttentionBatch& batch, const Execution& execution) {
  const std::string label = to_string(batch.description());
  const PagedAttentionArgs paged = batch.paged();
  const reference::AttentionResult want = reference::attention(paged);
  batch.reset_outputs();
  paged_attention(paged, execution);
  std::string report =
      check_outputs(paged.out, paged.lse, paged.options, want, label + " over pages:");
  if (report.empty()) report = batch.check_surroundings();
  if (!report.empty() || batch.description().hole_share > 0.0) return report;

  const PackedAttentionArgs packed = batch.packed();
  batch.reset_outputs();
  packed_attention(packed, execution);
  report = check_outputs(packed.out, packed.lse, packed.options, want, label + " packed:");
  return report.empty() ? batch.check_surroundings() : report;
}

}  // namespace hpcattn::testkit
