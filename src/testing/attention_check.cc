// SPDX-License-Identifier: Apache-2.0
#include "src/testing/attention_check.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/cpu/reference/numbers.h"
#include "src/testing/compare.h"

namespace hpcattn::testkit {

std::string check_outputs(const Tensor& out, const Tensor& lse, const AttentionOptions& options,
                          const reference::AttentionResult& want, const std::string& label) {
  const double u = reference::unit_roundoff(DType::kFloat32);
  const auto head_dim = static_cast<std::size_t>(out.size(2));
  const double out_scale =
      options.out_scale.defined() ? reference::element(options.out_scale, {0}) : 1.0;

  std::vector<double> stored(want.out.size());
  std::vector<double> out_bound(want.out.size());
  std::vector<double> lse_bound(want.lse.size());
  for (std::size_t row = 0; row < want.lse.size(); ++row) {
    const double score_error =
        (2.0 * std::sqrt(static_cast<double>(head_dim)) + 8.0) * u * want.score_magnitude[row];
    const double sum_error =
        (2.0 * std::sqrt(static_cast<double>(want.num_visible[row])) + 16.0) * u;
    const double lse_size = std::isfinite(want.lse[row]) ? std::fabs(want.lse[row]) : 0.0;
    lse_bound[row] = score_error + sum_error + 2.0 * u * lse_size;
    for (std::size_t at = row * head_dim; at < (row + 1) * head_dim; ++at) {
      const double error = (2.0 * score_error + sum_error) * want.out_magnitude[at] / out_scale;
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
