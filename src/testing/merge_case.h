// SPDX-License-Identifier: Apache-2.0
// A call of merge_partials, built from a description and a seed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hpcattn/merge.h"
#include "src/cpu/reference/merge.h"
#include "src/testing/guarded_tensor.h"

namespace hpcattn::testkit {

struct MergeCase {
  std::uint64_t seed = 1;
  std::int64_t num_partials = 2;
  std::vector<std::int64_t> sizes = {5, 3, 64};
  DType dtype = DType::kFloat32;
  DType out_dtype = DType::kFloat32;
  bool with_lse = true;
  std::int64_t row_gap = 0;
  double absent_share = 0.2;  // of rows with lse -inf and a NaN partial
  double lse_deviation = 2.0;
};

std::string to_string(const MergeCase& c);

struct MergeBatch {
  explicit MergeBatch(const MergeCase& c);

  MergeArgs args() const;

  MergeCase description;
  std::vector<GuardedTensor> partials, lses;
  GuardedTensor out, lse;
};

/// `error`: of what was computed, as a share of the sum of |terms|, before it is rounded to the
/// dtype. The CPU's sums are float64: 2^-40 covers them.
inline constexpr double kFloat64Merge = 0x1p-40;
/// The GPU's are float32. A weight exp(lse_s - lse) counts for something while the difference is
/// below 104, and its rounding then changes the weight by up to 104 u.
inline constexpr double kFloat32Merge = 128 * 0x1p-24;

std::string check_merge(const Tensor& out, const Tensor& lse, const reference::MergeResult& want,
                        const std::string& label, double error = kFloat64Merge);

std::string run_and_check(const MergeCase& c, const Execution& execution = {});

/// The same, by whatever carries the call out; its report comes first.
std::string run_and_check_by(const MergeCase& c, double error,
                             const std::function<std::string(const MergeArgs&)>& call);

}  // namespace hpcattn::testkit
