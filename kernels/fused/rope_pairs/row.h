// SPDX-License-Identifier: Apache-2.0
// One row of each team of a warp: turned, normed, rounded and stored, and what is in doubt decided.
#pragma once

#include <cstdint>

#include "kernels/fused/rope/rows.h"
#include "kernels/fused/rope_pairs/exact.h"
#include "kernels/fused/rope_pairs/round.h"
#include "kernels/fused/rope_pairs/stage.h"
#include "kernels/ptx/math.h"

namespace hpcattn {

inline constexpr unsigned kWholeWarp = 0xffffffffU;

/// What combine(x, y) makes of the lanes of a row, in an order that depends on their number alone.
template <typename Number, typename Combine>
inline Number over_row(Number value, int num_lanes, const Combine& combine) {
  HPCATTN_UNROLL
  for (int distance = 8; distance > 0; distance /= 2) {
    if (distance < 4 || distance < num_lanes) value = combine(value, distance);
  }
  return value;
}

/// Of one lane, what the norm's mean square is taken of. RoPE turns a^2 + b^2 into that times
/// cos^2 + sin^2.
template <RopePairsSpec kSpec>
inline float squares_of(const LaneWords& row, const PairTurns& turns) {
  float sums[4];
  HPCATTN_UNROLL
  for (int k = 0; k < 4; ++k) {
    const TwoPairs pairs = pairs_of<kSpec>(row, k);
    float squares[2];
    HPCATTN_UNROLL
    for (int i = 0; i < 2; ++i) {
      squares[i] = fmaf(pairs.a[i], pairs.a[i], pairs.b[i] * pairs.b[i]);
      if constexpr (kSpec.norm == PairsNorm::kAfterRope) squares[i] *= turns.square[2 * k + i];
    }
    sums[k] = squares[0] + squares[1];
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// 1 / sqrt(x), within 2^-23; 0 of infinity.
inline float refined_root(float x) {
  const float root = ptx::rsqrt(x);
  if (root == 0.0F || x == 0.0F) return 0.0F;
  return fmaf(0.5F * root, fmaf(-x * root, root, 1.0F), root);
}

/// Leaves the norm's factor in `row`. All lanes of the warp come here.
template <RopePairsSpec kSpec>
inline void find_factor(const RopePairsParams& p, const PairTurns& turns, PairsRow& row,
                        const PairsStage& stage) {
  if constexpr (kSpec.norm == PairsNorm::kNone) return;
  const auto mean_square = [&] {
    const auto sum = [](float x, int distance) {
      return x + __shfl_xor_sync(kWholeWarp, x, distance);
    };
    return over_row(squares_of<kSpec>(row.in, turns), p.num_lanes, sum) * p.inverse_head_dim;
  };
  const float mean = mean_square();
  float under_root = mean + p.eps[kInRange].hi;
  const bool inside = under_root >= 0x1p-80F && under_root <= 0x1p100F;
  if (__any_sync(kWholeWarp, !inside)) {
    if (under_root < 0x1p-80F) row.range = kTinyRows;
    if (under_root > 0x1p100F || under_root != under_root) row.range = kHugeRows;
    const float scale = row.range == kTinyRows   ? kTinyRowScale
                        : row.range == kHugeRows ? kHugeRowScale
                                                 : 1.0F;
    HPCATTN_UNROLL
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t word = row.in.words[i];
      if (row.range == kInRange) continue;
      row.in.words[i] = ptx::pack2<kSpec.dtype>(decode<kSpec.dtype>(word & 0xffffU) * scale,
                                                decode<kSpec.dtype>(word >> 16) * scale);
    }
    stage.put(row.in);
    const float eps = row.range == kTinyRows   ? p.eps[kTinyRows].hi
                      : row.range == kHugeRows ? p.eps[kHugeRows].hi
                                               : p.eps[kInRange].hi;
    under_root = mean_square() + eps;
  }
  row.factor = refined_root(under_root);
}

/// Decides the numbers that rounded_pairs() left in doubt, and puts them right at `to`. All lanes
/// of the warp come here.
template <RopePairsSpec kSpec, bool kTurned>
inline void decide(const RopePairsParams& p, const PairsStage& stage, const PairsUnit& unit,
                   const PairsRow& row, DType dtype, const RowCodes& found, char* to) {
  ExactRow exact{.weights = &p.rope.weights[unit.kind == kKeyRow ? 1 : 0],
                 .table = table_row(p.rope, unit.position),
                 .scale = found.scale,
                 .divided = is_fp8(dtype)};
  const LanePieces pieces = pieces_here(unit.pieces);
  if constexpr (kTurned && kSpec.norm != PairsNorm::kNone) {
    TwoFloat sum = exact_squares<kSpec>(p.rope, pieces, exact.table, row.in);
    HPCATTN_NO_UNROLL
    for (int distance = p.num_lanes / 2; distance > 0; distance /= 2) {
      sum = sum + TwoFloat{__shfl_xor_sync(kWholeWarp, sum.hi, distance),
                           __shfl_xor_sync(kWholeWarp, sum.lo, distance)};
    }
    const TwoFloat eps = row.range == kTinyRows   ? p.eps[kTinyRows]
                         : row.range == kHugeRows ? p.eps[kHugeRows]
                                                  : p.eps[kInRange];
    exact.factor = exact_factor(sum, static_cast<float>(p.rope.head_dim), eps);
  }
  HPCATTN_NO_UNROLL
  for (unsigned open = found.open; open != 0; open &= open - 1) {
    const int at = __ffs(static_cast<int>(open)) - 1;
    const int at_partner = kSpec.interleaved ? at ^ 1 : at ^ 8;
    const auto element = [&](int place) {
      return place < 8 ? pieces.first + place : pieces.second + place - 8;
    };
    const bool second_of_pair = kSpec.interleaved ? at % 2 == 1 : at >= 8;
    const std::int32_t pair = pieces.pair + (kSpec.interleaved ? at / 2 : at % 8);
    const float y =
        exact_number<kSpec, kTurned>(p.rope, exact,
                                     {.x = stage.element<kSpec.dtype>(at),
                                      .x_partner = stage.element<kSpec.dtype>(at_partner),
                                      .own = element(at),
                                      .partner = element(at_partner),
                                      .pair = pieces.turns ? pair : -1,
                                      .sign = second_of_pair ? 1.0F : -1.0F});
    if (!exact.divided) {
      const std::uint32_t code = encode_pair<kSpec.dtype>(y, 0.0F);
      *reinterpret_cast<std::uint16_t*>(to + element(at) * 2) = static_cast<std::uint16_t>(code);
    } else {
      const std::uint32_t code = dtype == DType::kFloat8E4M3
                                     ? encode_pair<DType::kFloat8E4M3>(y, 0.0F)
                                     : encode_pair<DType::kFloat8E5M2>(y, 0.0F);
      *reinterpret_cast<std::uint8_t*>(to + element(at)) = static_cast<std::uint8_t>(code);
    }
  }
}

/// Stores the lane's two pieces, of 16 or 8 bytes.
template <int kBytes>
inline void store_pieces(const LaneWords& codes, const LanePieces& pieces, char* row) {
  using Codes = LaneCodes<kBytes>;
  HPCATTN_UNROLL
  for (int half = 0; half < 2; ++half) {
    Codes piece;
    HPCATTN_UNROLL
    for (int i = 0; i < Codes::kWords; ++i) piece.words[i] = codes.words[half * Codes::kWords + i];
    store_codes<kBytes>(piece, row + (half == 0 ? pieces.first : pieces.second) * kBytes,
                        kLaneElements, true);
  }
}

/// The scale of a q row, from its largest magnitude: within some ulps of amax / upper_max.
inline float scale_of_row(const RopePairsParams& p, const TwoPairs (&y)[4], float factor) {
  float largest = 0.0F;
  HPCATTN_UNROLL
  for (int k = 0; k < 4; ++k) {
    HPCATTN_UNROLL
    for (int i = 0; i < 2; ++i) {
      largest = fmaxf(largest, fmaxf(fabsf(y[k].a[i]), fabsf(y[k].b[i])));
    }
  }
  largest = over_row(largest, p.num_lanes, [](float x, int distance) {
    return fmaxf(x, __shfl_xor_sync(kWholeWarp, x, distance));
  });
  const float amax = largest * factor;
  if (!(amax > 0.0F)) return 1.0F;
  const float near = amax * p.inverse_upper_max;
  const float scale = fmaf(fmaf(-near, p.upper_max, amax), p.inverse_upper_max, near);
  return fminf(fmaxf(scale, 0x1p-126F), 0x1.fffffep127F);
}

/// fp8 by a scale that is given.
template <RopePairsSpec kSpec, bool kTurned>
inline void round_by_scale(const PairTurns& turns, const PairsRow& row, DType dtype,
                           RowCodes& found) {
  const auto numbers = [&](int k) { return turned_pairs<kSpec, kTurned>(row.in, turns, k); };
  const float factor = row.factor * ptx::rcp(found.scale);
  if (dtype == DType::kFloat8E4M3) {
    constexpr DType kTo = DType::kFloat8E4M3;
    take<kTo>(rounded_pairs<kSpec, kTurned, kTo>(numbers, factor, 0.0F), found);
  } else {
    constexpr DType kTo = DType::kFloat8E5M2;
    take<kTo>(rounded_pairs<kSpec, kTurned, kTo>(numbers, factor, 0.0F), found);
  }
}

/// fp8 by the row's own scale: no number is over upper_max, nor are its products over sqrt(2) times
/// that (Cauchy: |a c| + |b s| is at most the length of (a, b) times that of (c, s), which is the
/// length of the turned pair). But weights after RoPE are of one of a pair.
template <RopePairsSpec kSpec>
inline void round_by_own_scale(const RopePairsParams& p, const PairTurns& turns,
                               const PairsRow& row, RowCodes& found) {
  constexpr DType kTo = DType::kFloat8E4M3;
  constexpr bool kProducts = kSpec.norm == PairsNorm::kAfterRope;
  TwoPairs y[4];
  HPCATTN_UNROLL
  for (int k = 0; k < 4; ++k) y[k] = turned_pairs<kSpec, true>(row.in, turns, k).y;
  found.scale = scale_of_row(p, y, row.factor);
  const float factor = row.factor * ptx::rcp(found.scale);
  const auto numbers = [&](int k) {
    return kProducts ? turned_pairs<kSpec, true>(row.in, turns, k) : TurnedPairs{y[k], {}};
  };
  constexpr float kRootOfTwo = 1.42F;
  const float flat = kOfProducts<kSpec> * kRootOfTwo * p.upper_max;
  take<kTo>(rounded_pairs<kSpec, kProducts, kTo>(numbers, factor, flat), found);
}

/// Rounds the row to `dtype` and stores it at `to`. All lanes of the warp come here.
template <RopePairsSpec kSpec, bool kTurned>
inline void store_as(const RopePairsParams& p, const PairsUnit& unit, const PairTurns& turns,
                     const PairsRow& row, DType dtype, char* to, const PairsStage& stage) {
  RowCodes found;
  bool doubtful = row.doubtful;
  if (is_fp8(dtype)) {
    const ScaleView& scales = p.rope.scales[unit.kind];
    if (kTurned && unit.kind == kQueryRow && scales.data == nullptr) {
      round_by_own_scale<kSpec>(p, turns, row, found);
    } else {
      found.scale = scales.at(unit.kind == kQueryRow ? 0 : row.head);
      round_by_scale<kSpec, kTurned>(turns, row, dtype, found);
    }
    // Its reciprocal is a number then.
    doubtful |= !(found.scale >= 0x1p-100F && found.scale <= 0x1p100F);
  } else if constexpr (kTurned) {
    const auto numbers = [&](int k) { return turned_pairs<kSpec, true>(row.in, turns, k); };
    constexpr DType kTo = kSpec.dtype;
    take<kTo>(rounded_pairs<kSpec, true, kTo>(numbers, row.factor, 0.0F), found);
  } else {
    found.codes = row.in;  // the same bits
    doubtful = false;
  }
  if (doubtful) found.open = 0xffffU;
  if (!row.live) found.open = 0;
  const bool in_doubt = __any_sync(kWholeWarp, found.open != 0);
  if (row.live) {
    const LanePieces pieces = pieces_here(unit.pieces);
    if (is_fp8(dtype)) {
      store_pieces<1>(found.codes, pieces, to);
      const RowsView& scales = p.rope.out_q_scale;
      if (unit.kind == kQueryRow && scales.data != nullptr && pieces.first == 0) {
        *reinterpret_cast<float*>(scales.row(unit.token, row.head)) = found.scale;
      }
    } else {
      store_pieces<2>(found.codes, pieces, to);
    }
  }
  if (in_doubt) decide<kSpec, kTurned>(p, stage, unit, row, dtype, found, to);
}

/// Stores a row wherever it goes. All lanes of the warp come here.
template <RopePairsSpec kSpec, bool kTurned>
inline void store_row_of_pairs(const RopePairsParams& p, const PairsUnit& unit,
                               const PairTurns& turns, const PairsRow& row,
                               const PairsStage& stage) {
  // One body for both targets: the conversions to each dtype are most of the kernel's code.
  HPCATTN_NO_UNROLL
  for (int target = 0; target < 2; ++target) {
    const bool to_cache = target == 0;
    char* to = to_cache ? unit.in_cache : unit.in_output;
    if (to == nullptr) continue;
    const int side = unit.kind == kValueRow ? 1 : 0;
    to += std::int64_t{row.head} * (to_cache ? p.cache_strides[side] : p.output_strides[unit.kind]);
    store_as<kSpec, kTurned>(p, unit, turns, row,
                             to_cache ? p.rope.caches[side].dtype : p.rope.outputs[unit.kind].dtype,
                             to, stage);
  }
}

}  // namespace hpcattn
