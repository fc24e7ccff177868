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

  constexpr std::int32_t gap() const { return second - first; }
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

/// The 16 codes of a lane, in the order of its two pieces.
struct LaneWords {
  std::uint32_t words[8];
};

/// The numbers that these stand for, or what becomes of them, in the same order.
struct LaneNumbers {
  float of[2 * kLanePairs];
};

/// Where the members of pair j are among them.
template <bool kInterleaved>
constexpr int place_of_a(int j) {
  return kInterleaved ? 2 * j : j;
}
template <bool kInterleaved>
constexpr int place_of_b(int j) {
  return kInterleaved ? 2 * j + 1 : kLanePairs + j;
}

template <DType kDType>
inline LaneNumbers decoded(const LaneWords& row) {
  LaneNumbers x;
  HPCATTN_UNROLL
  for (int i = 0; i < 8; ++i) {
    x.of[2 * i] = decode<kDType>(row.words[i] & 0xffffU);
    x.of[2 * i + 1] = decode<kDType>(row.words[i] >> 16);
  }
  return x;
}

/// What `of` makes of each, as codes of kTo; those of fp8 fill four words.
template <DType kTo, typename Of>
inline LaneWords encoded(const LaneNumbers& x, const Of& of) {
  constexpr int kBits = 8 * static_cast<int>(size_bytes(kTo));
  LaneWords codes{};
  HPCATTN_UNROLL
  for (int i = 0; i < 2 * kLanePairs; i += 2) {
    codes.words[i * kBits / 32] |= encode_pair<kTo>(of(x.of[i]), of(x.of[i + 1]))
                                   << (i * kBits % 32);
  }
  return codes;
}

/// a -> a * of_a[0] - b * of_a[1];  b -> b * of_b[0] + a * of_b[1]: cosines and sines, times
/// weights where these come before; else of_b would be as of_a, and is not there.
struct PairTurns {
  float of_a[2][kLanePairs];
  float of_b[2][kLanePairs];
  float weights[2][kLanePairs];  // kAfterRope: that the outcomes of a and b are multiplied with
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
  float cos[kLanePairs];
  float sin[kLanePairs];
  load_angles(p, row, pieces, cos, sin);
  HPCATTN_UNROLL
  for (int j = 0; j < kLanePairs; ++j) {
    turns.of_a[0][j] = cos[j];
    turns.of_a[1][j] = sin[j];
  }
  if constexpr (kSpec.norm == PairsNorm::kNone) return;
  float of_pieces[2][kLanePairs] = {};
  if (pieces.live) {
    load_eight(weights.data + pieces.first * weights.stride, weights.dtype, of_pieces[0]);
    load_eight(weights.data + pieces.second * weights.stride, weights.dtype, of_pieces[1]);
  }
  HPCATTN_UNROLL
  for (int j = 0; j < kLanePairs; ++j) {
    constexpr bool kInterleaved = kSpec.interleaved;
    const float a = of_pieces[place_of_a<kInterleaved>(j) / 8][place_of_a<kInterleaved>(j) % 8];
    const float b = of_pieces[place_of_b<kInterleaved>(j) / 8][place_of_b<kInterleaved>(j) % 8];
    if constexpr (kSpec.norm == PairsNorm::kAfterRope) {
      turns.weights[0][j] = a;
      turns.weights[1][j] = b;
    } else {
      turns.of_a[0][j] = a * cos[j];
      turns.of_a[1][j] = b * sin[j];
      turns.of_b[0][j] = b * cos[j];
      turns.of_b[1][j] = a * sin[j];
    }
  }
}

}  // namespace hpcattn
