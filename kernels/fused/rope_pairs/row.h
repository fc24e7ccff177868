// SPDX-License-Identifier: Apache-2.0
// One row of each team of a warp: turned, normed, rounded and stored. A number is computed in
// float32 together with a bound of its error; where the two ends of that interval round alike, that
// is the right value rounded once, else exact.h decides (docs/kernels/rope.md).
#pragma once

#include <cstdint>

#include "kernels/fused/rope/rows.h"
#include "kernels/fused/rope_pairs/exact.h"
#include "kernels/ptx/math.h"
#include "kernels/ptx/thread.h"

namespace hpcattn {

inline constexpr unsigned kWholeWarp = 0xffffffffU;

/// What the rows of a step have in common.
struct PairsUnit {
  std::int32_t token = 0;
  int kind = -1;              // RopeRow of the step
  std::int32_t position = 0;  // that the lane's pairs follow
  PackedPieces pieces{};      // of the lane
  // Head 0 of the token, null where nothing is stored:
  char* in_cache = nullptr;
  char* in_output = nullptr;
};

/// The lane's pieces, taken apart where they are used: the coefficients take the registers.
inline LanePieces pieces_here(PackedPieces pieces) {
  return unpacked({ptx::word_here(pieces.word)});
}

template <RopePairsSpec kSpec>
inline void load_turns(const RopePairsParams& p, const PairsUnit& unit, PairTurns& turns) {
  load_turns<kSpec>(p.rope, p.rope.weights[unit.kind], table_row(p.rope, unit.position),
                    pieces_here(unit.pieces), turns);
}

/// A row of a team.
struct PairsRow {
  std::int32_t head;
  bool live;  // there is one, and the lane has elements of it
  LaneWords in;
  float factor = 1.0F;    // the norm's
  int range = kInRange;   // of its squares
  bool doubtful = false;  // float32 can not tell what this lane computes
};

/// Bounds of float32's error, in parts of 2^-24 with some to spare: of what is proportional to the
/// number itself (the norm's factor, the scale, sums and the ends of the interval) ...
template <RopePairsSpec kSpec, bool kDivided>
inline constexpr float kOfNumber =
    ((kSpec.norm == PairsNorm::kNone ? 2.25F : 11.0F) + (kDivided ? 4.0F : 0.0F)) * 0x1p-24F;
/// ... and of what is to the products that it is the sum of (coefficients and products).
template <RopePairsSpec kSpec>
inline constexpr float kOfProducts = (kSpec.norm == PairsNorm::kNone ? 1.1F : 2.1F) * 0x1p-24F;

/// The sum of a float over the lanes of a row, in an order that depends on their number alone.
inline float sum_of_row(float value, int num_lanes) {
  for (int distance = num_lanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kWholeWarp, value, distance);
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
inline void find_factor(const RopePairsParams& p, const PairTurns& turns, PairsRow& row) {
  if constexpr (kSpec.norm == PairsNorm::kNone) return;
  const float per_element = 1.0F / static_cast<float>(p.rope.head_dim);
  const auto mean_square = [&] {
    return sum_of_row(squares_of<kSpec>(row.in, turns), p.num_lanes) * per_element;
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
    const float eps = row.range == kTinyRows   ? p.eps[kTinyRows].hi
                      : row.range == kHugeRows ? p.eps[kHugeRows].hi
                                               : p.eps[kInRange].hi;
    under_root = mean_square() + eps;
  }
  row.factor = refined_root(under_root);
}

/// Numbers of two pairs before the norm's factor, and the sums of their products' magnitudes.
struct TurnedPairs {
  TwoPairs y;
  TwoPairs products;
};

template <RopePairsSpec kSpec, bool kTurned>
inline TurnedPairs turned_pairs(const LaneWords& row, const PairTurns& turns, int k) {
  const TwoPairs x = pairs_of<kSpec>(row, k);
  if constexpr (!kTurned) return {x, {}};
  TurnedPairs turned;
  HPCATTN_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int j = 2 * k + i;
    const float from_b = x.b[i] * turns.of_a[1][j];
    const float from_a = x.a[i] * turns.of_b[1][j];
    turned.y.a[i] = fmaf(x.a[i], turns.of_a[0][j], -from_b);
    turned.y.b[i] = fmaf(x.b[i], turns.of_b[0][j], from_a);
    turned.products.a[i] = fmaf(fabsf(x.a[i]), fabsf(turns.of_a[0][j]), fabsf(from_b));
    turned.products.b[i] = fmaf(fabsf(x.b[i]), fabsf(turns.of_b[0][j]), fabsf(from_a));
  }
  return turned;
}

/// Codes of the lane's 16 numbers, in the order of its pieces; of fp8 the first four words count.
/// A word of `unlike` is of two pairs: where its lower or upper half is not 0, one is in doubt.
struct RoundedPairs {
  LaneWords codes;
  std::uint32_t unlike[4];
};

///
/// numbers(k): pairs 2k and 2k + 1. `flat`: of the error, where it does not depend on the number;
/// the products' share where kProducts is not.
template <RopePairsSpec kSpec, bool kProducts, DType kTo, typename Numbers>
inline RoundedPairs rounded_pairs(const Numbers& numbers, float factor, float flat) {
  constexpr int kBits = 8 * static_cast<int>(size_bytes(kTo));
  constexpr std::uint32_t kLow = (1U << kBits) - 1;
  RoundedPairs rounded{};
  HPCATTN_UNROLL
  for (int k = 0; k < 4; ++k) {
    const auto [y, products] = numbers(k);
    const float share = kOfProducts<kSpec> * factor;
    float low[4];
    float high[4];
    HPCATTN_UNROLL
    for (int i = 0; i < 4; ++i) {
      // In the order of the words.
      const bool is_b = kSpec.interleaved ? i % 2 == 1 : i / 2 == 1;
      const int of_pair = kSpec.interleaved ? i / 2 : i % 2;
      const float number = (is_b ? y.b[of_pair] : y.a[of_pair]) * factor;
      float error = flat;
      if constexpr (kProducts) {
        error = (is_b ? products.b[of_pair] : products.a[of_pair]) * share;
      }
      error = fmaf(fabsf(number), kOfNumber<kSpec, is_fp8(kTo)>, error);
      low[i] = number - error;
      high[i] = number + error;
    }
    const std::uint32_t first = encode_pair<kTo>(high[0], high[1]);
    const std::uint32_t second = encode_pair<kTo>(high[2], high[3]);
    std::uint32_t unlike_first = first ^ encode_pair<kTo>(low[0], low[1]);
    std::uint32_t unlike_second = second ^ encode_pair<kTo>(low[2], low[3]);
    if constexpr (kSpec.interleaved) {
      unlike_first = (unlike_first | unlike_first >> kBits) & kLow;
      unlike_second = (unlike_second | unlike_second << kBits) & ~kLow;
    }
    rounded.unlike[k] = unlike_first | unlike_second;
    const int at_first = first_word<kSpec.interleaved>(k);
    const int at_second = second_word<kSpec.interleaved>(k);
    if constexpr (kBits == 16) {
      rounded.codes.words[at_first] = first;
      rounded.codes.words[at_second] = second;
    } else {
      rounded.codes.words[at_first / 2] |= first << (at_first % 2 * 16);
      rounded.codes.words[at_second / 2] |= second << (at_second % 2 * 16);
    }
  }
  return rounded;
}

/// Pairs of a lane that are in doubt, a bit each.
template <DType kTo>
inline unsigned open_pairs(const RoundedPairs& rounded) {
  constexpr std::uint32_t kLow = (1U << (8 * size_bytes(kTo))) - 1;
  unsigned open = 0;
  HPCATTN_UNROLL
  for (int k = 0; k < 4; ++k) {
    if ((rounded.unlike[k] & kLow) != 0) open |= 1U << (2 * k);
    if ((rounded.unlike[k] & ~kLow) != 0) open |= 2U << (2 * k);
  }
  return open;
}

/// Puts a code of `bits` bits in place `at` of the 16.
inline void put_code(LaneWords& codes, int bits, int at, std::uint32_t code) {
  const int bit = at * bits;
  const std::uint32_t mask = (1U << bits) - 1;
  HPCATTN_UNROLL
  for (int i = 0; i < 8; ++i) {
    // Every word is written: a choice of one would put all of them into memory.
    const std::uint32_t here = i == bit / 32 ? mask << bit % 32 : 0U;
    codes.words[i] = (codes.words[i] & ~here) | (code << bit % 32 & here);
  }
}

/// Two codes of a dtype known at run time.
template <DType kOwn>
inline std::uint32_t encode_as(DType dtype, float first, float second) {
  if (dtype == DType::kFloat8E4M3) return encode_pair<DType::kFloat8E4M3>(first, second);
  if (dtype == DType::kFloat8E5M2) return encode_pair<DType::kFloat8E5M2>(first, second);
  return encode_pair<kOwn>(first, second);
}

/// A row's codes in a target's dtype, and what else became of it.
struct RowCodes {
  LaneWords codes;
  unsigned open = 0;   // pairs in doubt, a bit each
  float scale = 1.0F;  // that an fp8 target was divided by
};

/// Decides the pairs that rounded_pairs() left open. All lanes of the warp come here.
template <RopePairsSpec kSpec, bool kTurned>
inline void decide(const RopePairsParams& p, const PairsUnit& unit, const PairsRow& row,
                   DType dtype, RowCodes& found) {
  ExactRow exact{.weights = &p.rope.weights[unit.kind == kKeyRow ? 1 : 0],
                 .table = table_row(p.rope, unit.position),
                 .scale = found.scale,
                 .divided = is_fp8(dtype)};
  if constexpr (kTurned && kSpec.norm != PairsNorm::kNone) {
    TwoFloat sum = exact_squares<kSpec>(p.rope, pieces_here(unit.pieces), exact.table, row.in);
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
  const LanePieces pieces = pieces_here(unit.pieces);
  const int bits = exact.divided ? 8 : 16;
  HPCATTN_NO_UNROLL
  while (found.open != 0) {
    const int j = __ffs(static_cast<int>(found.open)) - 1;
    found.open &= found.open - 1;
    HPCATTN_NO_UNROLL
    for (int member = 0; member < 2; ++member) {
      const int at = kSpec.interleaved ? 2 * j + member : j + 8 * member;
      const int at_partner = kSpec.interleaved ? at ^ 1 : at ^ 8;
      const auto element = [&](int place) {
        return place < 8 ? pieces.first + place : pieces.second + place - 8;
      };
      const float y =
          exact_number<kSpec, kTurned>(p.rope, exact,
                                       {.x = element_at<kSpec.dtype>(row.in, at),
                                        .x_partner = element_at<kSpec.dtype>(row.in, at_partner),
                                        .own = element(at),
                                        .partner = element(at_partner),
                                        .pair = pieces.turns ? pieces.pair + j : -1,
                                        .sign = member == 0 ? -1.0F : 1.0F});
      put_code(found.codes, bits, at, encode_as<kSpec.dtype>(dtype, y, y));
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
  for (int distance = p.num_lanes / 2; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, distance));
  }
  const float amax = largest * factor;
  if (!(amax > 0.0F)) return 1.0F;
  const float near = amax * p.inverse_upper_max;
  const float scale = fmaf(fmaf(-near, p.upper_max, amax), p.inverse_upper_max, near);
  return fminf(fmaxf(scale, 0x1p-126F), 0x1.fffffep127F);
}

template <DType kTo>
inline void take(const RoundedPairs& rounded, RowCodes& row) {
  row.codes = rounded.codes;
  const std::uint32_t unlike =
      rounded.unlike[0] | rounded.unlike[1] | rounded.unlike[2] | rounded.unlike[3];
  if (unlike != 0) row.open = open_pairs<kTo>(rounded);
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
inline void store_as(const RopePairsParams& p, const PairsUnit& unit, PairTurns& turns,
                     const PairsRow& row, DType dtype, char* to) {
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
  if (doubtful) found.open = 0xffU;
  if (!row.live) found.open = 0;
  if (__any_sync(kWholeWarp, found.open != 0)) {
    decide<kSpec, kTurned>(p, unit, row, dtype, found);
    // Anew, so that they are not kept in registers where decide() needs these.
    if constexpr (kTurned) load_turns<kSpec>(p, unit, turns);
  }
  if (!row.live) return;
  const LanePieces pieces = pieces_here(unit.pieces);
  if (is_fp8(dtype)) {
    store_pieces<1>(found.codes, pieces, to);
    const RowsView& scale_out = p.rope.out_q_scale;
    if (unit.kind == kQueryRow && scale_out.data != nullptr && pieces.first == 0) {
      *reinterpret_cast<float*>(scale_out.row(unit.token, row.head)) = found.scale;
    }
  } else {
    store_pieces<2>(found.codes, pieces, to);
  }
}

/// Stores a row wherever it goes. All lanes of the warp come here.
template <RopePairsSpec kSpec, bool kTurned>
inline void store_row_of_pairs(const RopePairsParams& p, const PairsUnit& unit, PairTurns& turns,
                               const PairsRow& row) {
  // One body for both targets: the conversions to each dtype are most of the kernel's code.
  HPCATTN_NO_UNROLL
  for (int target = 0; target < 2; ++target) {
    const bool to_cache = target == 0;
    char* to = to_cache ? unit.in_cache : unit.in_output;
    if (to == nullptr) continue;
    const RowsView& output = p.rope.outputs[unit.kind];
    const CacheView& cache = p.rope.caches[unit.kind == kValueRow ? 1 : 0];
    to += row.head * (to_cache ? cache.head_stride : output.head_stride);
    store_as<kSpec, kTurned>(p, unit, turns, row, to_cache ? cache.dtype : output.dtype, to);
  }
}

}  // namespace hpcattn
