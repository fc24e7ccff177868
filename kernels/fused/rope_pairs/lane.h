// SPDX-License-Identifier: Apache-2.0
// What a lane holds: eight whole pairs of a row, so that no element passes between lanes, and of
// the token the coefficients that turn them.
#pragma once

#include <cstdint>

#include "kernels/fused/rope/lane.h"
#include "kernels/fused/rope/token.h"
#include "kernels/fused/rope_pairs/config.h"
#include "kernels/fused/rope_pairs/params.h"

namespace hpcattn {

/// A lane's elements of a row. Dims that do not turn are paired too, with an angle of 0.
struct LanePieces {
  bool live;            // the lane has elements
  bool turns;           // with an angle
  std::int32_t pair;    // first of its pairs, as the cosines count them, where they turn
  std::int32_t first;   // element that the first piece of 8 begins with
  std::int32_t second;  // ... the second; NeoX: the partners of the first's
};

template <bool kInterleaved>
constexpr LanePieces pieces_of(const RopeParams& p, int lane) {
  const std::int32_t pair = lane * kLanePairs;
  const std::int32_t half = p.rotary_dim / 2;
  const bool live = 2 * pair < p.head_dim;
  if constexpr (kInterleaved) return {live, pair < half, pair, 2 * pair, 2 * pair + kLanePairs};
  if (pair < half) return {live, true, pair, pair, pair + half};
  const std::int32_t passing = p.rotary_dim + pair - half;
  return {live, false, pair, passing, passing + (p.head_dim - p.rotary_dim) / 2};
}

/// In one register.
struct PackedPieces {
  std::uint32_t word;
};

constexpr PackedPieces packed(const LanePieces& pieces) {
  return {(pieces.live ? 1U : 0U) | (pieces.turns ? 2U : 0U) | std::uint32_t(pieces.pair) << 2 |
          std::uint32_t(pieces.first) << 12 | std::uint32_t(pieces.second) << 22};
}

constexpr LanePieces unpacked(PackedPieces pieces) {
  constexpr std::uint32_t kMask = (1U << 10) - 1;
  return {(pieces.word & 1U) != 0, (pieces.word & 2U) != 0, std::int32_t(pieces.word >> 2 & kMask),
          std::int32_t(pieces.word >> 12 & kMask), std::int32_t(pieces.word >> 22)};
}

/// The 16 codes of a lane, in the order of its two pieces.
struct LaneWords {
  std::uint32_t words[8];
};

/// Two pairs, 2k and 2k + 1: (a[0], b[0]) and (a[1], b[1]).
struct TwoPairs {
  float a[2];
  float b[2];
};

/// Words that hold pairs 2k and 2k + 1. NeoX: the a's, the b's. Interleaved: a pair each.
template <bool kInterleaved>
constexpr int first_word(int k) {
  return kInterleaved ? 2 * k : k;
}
template <bool kInterleaved>
constexpr int second_word(int k) {
  return kInterleaved ? 2 * k + 1 : 4 + k;
}

template <RopePairsSpec kSpec>
inline TwoPairs pairs_of(const LaneWords& row, int k) {
  const std::uint32_t first = row.words[first_word<kSpec.interleaved>(k)];
  const std::uint32_t second = row.words[second_word<kSpec.interleaved>(k)];
  const float numbers[4] = {decode<kSpec.dtype>(first & 0xffffU), decode<kSpec.dtype>(first >> 16),
                            decode<kSpec.dtype>(second & 0xffffU),
                            decode<kSpec.dtype>(second >> 16)};
  if constexpr (kSpec.interleaved) return {{numbers[0], numbers[2]}, {numbers[1], numbers[3]}};
  return {{numbers[0], numbers[1]}, {numbers[2], numbers[3]}};
}

/// a -> a * of_a[0] - b * of_a[1];  b -> b * of_b[0] + a * of_b[1]. Weights are in these.
struct PairTurns {
  float of_a[2][kLanePairs];
  float of_b[2][kLanePairs];
  float square[kLanePairs];  // kAfterRope: cos^2 + sin^2
};

/// The position that a lane's pairs follow: all of them the same.
inline std::int32_t position_of(const RopeParams& p, const std::int64_t (&positions)[3],
                                std::int32_t pair) {
  const int axis = p.mrope ? axis_of(pair, p.sections) : 0;
  const std::int64_t position = axis == 0 ? positions[0] : axis == 1 ? positions[1] : positions[2];
  return static_cast<std::int32_t>(position);
}

/// Its row of the table.
inline const char* table_row(const RopeParams& p, std::int32_t position) {
  return p.cos_sin + position * p.cos_sin_stride;
}

/// Eight neighbours, 16-byte aligned, of a dtype that is not fp8: of a table or of weights.
inline void load_eight(const char* from, DType dtype, float (&x)[kLanePairs]) {
  if (dtype == DType::kFloat32) {
    return decode<DType::kFloat32>(load_codes<4>(from, kLanePairs, true), x);
  }
  const LaneCodes<2> codes = load_codes<2>(from, kLanePairs, true);
  if (dtype == DType::kFloat16) return decode<DType::kFloat16>(codes, x);
  decode<DType::kBFloat16>(codes, x);
}

/// One of them.
inline float load_one(const char* from, DType dtype, std::int64_t index) {
  if (dtype == DType::kFloat32) return *reinterpret_cast<const float*>(from + index * 4);
  const std::uint32_t code = *reinterpret_cast<const std::uint16_t*>(from + index * 2);
  return dtype == DType::kFloat16 ? decode<DType::kFloat16>(code) : decode<DType::kBFloat16>(code);
}

/// Cosines and sines of the lane's pairs.
inline void load_angles(const RopeParams& p, const char* row, const LanePieces& pieces,
                        float (&cos)[kLanePairs], float (&sin)[kLanePairs]) {
  if (!pieces.turns) {
    HPCATTN_UNROLL
    for (int j = 0; j < kLanePairs; ++j) cos[j] = 1.0F, sin[j] = 0.0F;
    return;
  }
  const std::int64_t bytes = size_bytes(p.cos_sin_dtype);
  const char* from = row + pieces.pair * bytes;
  load_eight(from, p.cos_sin_dtype, cos);
  load_eight(from + p.rotary_dim / 2 * bytes, p.cos_sin_dtype, sin);
}

template <RopePairsSpec kSpec>
inline void load_turns(const RopeParams& p, const WeightView& weights, const char* row,
                       const LanePieces& pieces, PairTurns& turns) {
  constexpr bool kInterleaved = kSpec.interleaved;
  float cos[kLanePairs];
  float sin[kLanePairs];
  load_angles(p, row, pieces, cos, sin);
  if constexpr (kSpec.norm == PairsNorm::kNone) {
    HPCATTN_UNROLL
    for (int j = 0; j < kLanePairs; ++j) {
      turns.of_a[0][j] = turns.of_b[0][j] = cos[j];
      turns.of_a[1][j] = turns.of_b[1][j] = sin[j];
    }
    return;
  }
  float of_pieces[2][kLanePairs] = {};
  if (pieces.live) {
    load_eight(weights.data + pieces.first * weights.stride, weights.dtype, of_pieces[0]);
    load_eight(weights.data + pieces.second * weights.stride, weights.dtype, of_pieces[1]);
  }
  HPCATTN_UNROLL
  for (int j = 0; j < kLanePairs; ++j) {
    const float a = kInterleaved ? of_pieces[j / 4][2 * j % 8] : of_pieces[0][j];
    const float b = kInterleaved ? of_pieces[j / 4][2 * j % 8 + 1] : of_pieces[1][j];
    constexpr bool kBefore = kSpec.norm == PairsNorm::kBeforeRope;
    turns.of_a[0][j] = a * cos[j];
    turns.of_a[1][j] = (kBefore ? b : a) * sin[j];
    turns.of_b[0][j] = b * cos[j];
    turns.of_b[1][j] = (kBefore ? a : b) * sin[j];
    if constexpr (!kBefore) turns.square[j] = fmaf(cos[j], cos[j], sin[j] * sin[j]);
  }
}

}  // namespace hpcattn
