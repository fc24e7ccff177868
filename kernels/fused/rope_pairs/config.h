// SPDX-License-Identifier: Apache-2.0
// The variants of rope_norm_store_kv's kernel for 16-bit rows in aligned pieces: what models have.
// All else is kernels/fused/rope's.
#pragma once

#include <cstdint>

#include "hpcattn/dtype_id.h"

namespace hpcattn {

/// Of each head by itself.
enum class PairsNorm : std::uint8_t { kNone, kBeforeRope, kAfterRope };

struct RopePairsSpec {
  DType dtype = DType::kBFloat16;  // of q, k and v: 16 bits
  PairsNorm norm = PairsNorm::kNone;
  bool interleaved = false;
  int lanes = 8;  // to a row: pairs_lanes(head_dim)
  friend bool operator==(const RopePairsSpec&, const RopePairsSpec&) = default;
};

inline constexpr int kPairsThreads = 128;  // of a cta
inline constexpr int kPairsWarps = kPairsThreads / 32;
inline constexpr int kLanePairs = 8;  // of a row that a lane holds: two pieces of 8 elements
inline constexpr int kStageRows = 4;  // of a lane, worked on or on their way: a power of two
/// Bytes: the rows' pieces, what a lane notes of a token, and numbers that it puts right.
inline constexpr int kPairsShared = (kStageRows * 32 + 16 + 64) * kPairsThreads;

/// Ctas of a multiprocessor for which the compiler leaves registers: it would spill for six.
inline constexpr int kPairsCtasPerSm = 5;

/// Units of many steps come in so many rounds of warps, or fewer.
inline constexpr int kPairsMostRounds = 4;

/// Lanes to a row, 16 elements each; a power of two, so some may have no elements.
constexpr int pairs_lanes(std::int64_t head_dim) {
  return head_dim <= 64 ? 4 : head_dim <= 128 ? 8 : 16;
}

/// Rows that a warp works on at once.
constexpr int pairs_teams(int lanes) { return 32 / lanes; }

}  // namespace hpcattn
