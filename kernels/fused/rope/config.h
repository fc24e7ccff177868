// SPDX-License-Identifier: Apache-2.0
// The variants of rope_norm_store_kv's kernel. Whatever costs a uniform branch a row, beside moving
// the row's bytes, is no variant: dtypes of outputs, weights and tables, the order of norm and
// RoPE.
#pragma once

#include <cstdint>

#include "hpcattn/dtype_id.h"

namespace hpcattn {

/// What one mean square is taken over.
enum class RopeNorm : std::uint8_t { kNone, kHead, kToken };

struct RopeSpec {
  DType dtype = DType::kBFloat16;  // of q, k and v
  RopeNorm norm = RopeNorm::kNone;
  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
};

inline constexpr int kRopeThreads = 128;  // of a cta

/// Lanes to a row of `head_dim`, 8 elements each; a power of two, so some may have no elements.
constexpr int rope_lanes(std::int64_t head_dim) {
  return head_dim <= 64 ? 8 : head_dim <= 128 ? 16 : 32;
}

}  // namespace hpcattn
