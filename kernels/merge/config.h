// SPDX-License-Identifier: Apache-2.0
// The variants of merge_partials' kernel.
#pragma once

#include <cstdint>

#include "hpcattn/dtype_id.h"

namespace hpcattn {

struct MergeSpec {
  DType dtype = DType::kBFloat16;      // of the partials
  DType out_dtype = DType::kBFloat16;  // the same, or float32
  friend bool operator==(const MergeSpec&, const MergeSpec&) = default;
};

inline constexpr int kMergeThreads = 128;  // of a cta

/// Lanes to a row, 8 elements each; longer rows are taken in several rounds.
constexpr int merge_lanes(std::int64_t head_dim) {
  return head_dim <= 64 ? 8 : head_dim <= 128 ? 16 : 32;
}

}  // namespace hpcattn
