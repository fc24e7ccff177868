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

/// Sums are float64, so what is left is the rounding to the dtype; 2^-40 covers the sums.
std::string check_merge(const Tensor& out, const Tensor& lse, const reference::MergeResult& want,
                        const std::string& label);

std::string run_and_check(const MergeCase& c, const Execution& execution = {});

/// The same, by whatever carries the call out; its report comes first.
std::string run_and_check_by(const MergeCase& c,
                             const std::function<std::string(const MergeArgs&)>& call);

}  // namespace hpcattn::testkit
