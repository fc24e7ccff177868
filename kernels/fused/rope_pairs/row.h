// SPDX-License-Identifier: Apache-2.0
// One row of each team of a warp: turned, normed, rounded and stored.
#pragma once

#include <cstdint>

#include "kernels/fused/rope_pairs/stage.h"
#include "kernels/fused/rope_pairs/turn.h"
#include "kernels/ptx/math.h"

namespace hpcattn {

inline constexpr unsigned kWholeWarp = 0xffffffffU;

/// Where a step's rows go: the lane's first piece of its team's.
struct PairsTarget {
  char* to = nullptr;  // null: nowhere
  std::int32_t step_stride = 0;
  DType dtype = DType::kFloat32;

  PairsTarget() = default;
  __device__ PairsTarget(char* row, std::int32_t stride, DType row_dtype)
      : to(row), step_stride(stride), dtype(row_dtype) {}
  // Field by field: of words that were copied the compiler does not know that they point to global
  // memory.
  __device__ PairsTarget(const PairsTarget& other)
      : PairsTarget(other.to, other.step_stride, other.dtype) {}
  __device__ PairsTarget& operator=(const PairsTarget& other) {
    to = other.to;
    step_stride = other.step_stride;
    dtype = other.dtype;
    return *this;
  }
};

/// The row of each team that is worked on.
template <RopePairsSpec kSpec>
struct PairsRow {
  const PairsStage<kSpec>& stage;
  std::int32_t index;  // of its step in the unit
  const PairsStep& step;

  __device__ LaneNumbers numbers() const { return decoded<kSpec.dtype>(stage.row(index)); }
};

/// What combine(x, y) makes of the lanes of a row, in an order that depends on their number alone.
template <int kLanes, typename Combine>
inline float over_row(float value, const Combine& combine) {
  HPCATTN_UNROLL
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kWholeWarp, value, distance));
  }
  return value;
}

/// A number that is none, or infinite, among the lane's.
template <DType kDType>
inline bool has_infinite(const LaneWords& row) {
  constexpr std::uint32_t kExponent = kDType == DType::kFloat16 ? 0x7c00U : 0x7f80U;
  bool found = false;
  HPCATTN_UNROLL
  for (int i = 0; i < 8; ++i) {
    found |= (row.words[i] & kExponent) == kExponent;
    found |= (row.words[i] >> 16 & kExponent) == kExponent;
  }
  return found;
}

/// Turns doubtful pairs again, so that nothing shows of how they cancel, and all that is in them
/// times `scale`. Gives the squares that the norm is of, of these pairs. Seldom run: it reads what
/// it needs once more, and keeps nothing in registers for it.
template <RopePairsSpec kSpec>
inline float turn_carefully(const RopePairsParams& p, const PairsRow<kSpec>& row, float scale,
                            LaneTurned& lane) {
  HPCATTN_UNROLL
  for (int i = 0; i < 2 * kLanePairs; ++i) row.stage.number(i) = lane.y.of[i];
  const LanePieces pieces = pieces_here<kSpec>(p);
  const char* table = table_row(p.rope, row.stage.notes().position);
  const WeightView& weights = p.rope.weights[row.step.kind];
  float squares = 0.0F;
  HPCATTN_NO_UNROLL
  for (std::uint32_t open = lane.doubtful; open != 0; open &= open - 1) {
    const int pair = kLanePairs - __ffs(static_cast<int>(open));
    const int at_a = place_of_a<kSpec.interleaved>(pair);
    const int at_b = place_of_b<kSpec.interleaved>(pair);
    CarefulPair x{.a = row.stage.element(row.index, at_a) * scale,
                  .b = row.stage.element(row.index, at_b) * scale};
    if (kSpec.norm != PairsNorm::kNone && pieces.live) {
      const auto weight = [&](int at) {
        const std::int32_t element = at < 8 ? pieces.first + at : pieces.second + at - 8;
        return load_one(weights.data, weights.dtype, element);
      };
      x.weight_a = weight(at_a);
      x.weight_b = weight(at_b);
    }
    if (pieces.turns) {
      const DType dtype = p.rope.cos_sin_dtype;
      x.cos = load_one(table, dtype, pieces.pair + pair);
      x.sin = load_one(table, dtype, p.rope.rotary_dim / 2 + pieces.pair + pair);
    }
    squares += squares_to_norm<kSpec>(x);
    const CarefulPair y = turned_carefully<kSpec>(x, pieces.turns);
    // An infinity has no remainder.
    if (y.a == y.a) row.stage.number(at_a) = y.a;
    if (y.b == y.b) row.stage.number(at_b) = y.b;
  }
  HPCATTN_UNROLL
  for (int i = 0; i < 2 * kLanePairs; ++i) lane.y.of[i] = row.stage.number(i);
  return squares;
}

inline float sum(float x, float other) { return x + other; }
inline float larger(float x, float other) { return fmaxf(x, other); }

/// Turns a row of q or k, and finds the norm's factor. All lanes of the warp come here; `stored`:
/// the lane's row is. True: the coefficients were given up.
template <RopePairsSpec kSpec>
inline bool turn_row(const RopePairsParams& p, const PairsRow<kSpec>& row, bool stored,
                     bool may_doubt, PairTurns& turns, LaneTurned& lane, float& factor) {
  constexpr bool kNormed = kSpec.norm != PairsNorm::kNone;
  constexpr std::uint32_t kAllPairs = (1U << kLanePairs) - 1;
  if (may_doubt) {
    lane = turned<kSpec, true>(row.numbers(), turns, p.doubtful_shares[row.step.kind]);
  } else {
    lane = turned<kSpec, false>(row.numbers(), turns, 0.0F);
  }
  float mean = 1.0F;
  bool inside = true;
  if constexpr (kNormed) {
    mean = fmaf(over_row<kSpec.lanes>(lane.squares, sum), p.inverse_head_dim, p.eps[kInRange]);
    inside = mean >= 0x1p-80F && mean <= 0x1p100F;
    if (!inside) lane.doubtful = kAllPairs;
    factor = ptx::rsqrt_of_normal(mean);
  }
  // A lane that passes its numbers through has multiplied partners by 0.
  if (p.rope.rotary_dim < p.rope.head_dim && !pieces_here<kSpec>(p).turns &&
      has_infinite<kSpec.dtype>(row.stage.row(row.index))) {
    lane.doubtful = kAllPairs;
  }
  if (!stored) lane.doubtful = 0;
  if (!__any_sync(kWholeWarp, lane.doubtful != 0)) return false;
  // Rows whose squares leave float32's range are scaled by a power of two, which the factor takes
  // back.
  const PairsRange range = inside ? kInRange : mean < 0x1p-80F ? kTinyRows : kHugeRows;
  const float scale = inside ? 1.0F : range == kTinyRows ? kTinyRowScale : kHugeRowScale;
  float squares = turn_carefully(p, row, scale, lane);
  if constexpr (kNormed) {
    squares = over_row<kSpec.lanes>(squares, sum);
    if (!inside) factor = reciprocal_root(fmaf(squares, p.inverse_head_dim, p.eps[range]));
  }
  turns = {};  // so that no register holds them meanwhile
  return true;
}

/// Stores the lane's two pieces, of 16 or 8 bytes.
template <int kBytes>
inline void store_pieces(const LaneWords& codes, std::uint32_t gap, char* to) {
  using Codes = LaneCodes<kBytes>;
  HPCATTN_UNROLL
  for (int half = 0; half < 2; ++half) {
    Codes piece;
    HPCATTN_UNROLL
    for (int i = 0; i < Codes::kWords; ++i) piece.words[i] = codes.words[half * Codes::kWords + i];
    store_codes<kBytes>(piece, to + half * gap * kBytes, kLaneElements, true);
  }
}

/// Hands a scale of a row of q out.
template <RopePairsSpec kSpec>
inline void store_scale(const RopePairsParams& p, std::int32_t token, std::int32_t head,
                        float scale) {
  char* data = p.rope.out_q_scale.data;
  if (data == nullptr || lane_of_row<kSpec>() != 0) return;
  *reinterpret_cast<float*>(data + std::int64_t{token} * p.scale_strides[0] +
                            std::int64_t{head} * p.scale_strides[1]) = scale;
}

/// Stores a row: y times `factor`, where the target is fp8 over `scale`, or (`own`) over one that
/// is computed: then all lanes of the warp come here. `stored`: the lane's row is.
template <RopePairsSpec kSpec>
inline void store_row(const RopePairsParams& p, const PairsTarget& target,
                      const PairsRow<kSpec>& row, bool stored, const LaneNumbers& y, float factor,
                      bool own, float scale) {
  const PairsStep& step = row.step;
  const std::int32_t head = row.stage.head(step);
  const bool live = stored && head < num_heads(p, step.kind);
  if (!is_fp8(target.dtype)) {
    const LaneWords codes = encoded_over<kSpec.dtype>(y, factor, 1.0F);
    if (live) store_pieces<2>(codes, row.stage.gap(), target.to);
    return;
  }
  if (own) scale = own_scale(p, over_row<kSpec.lanes>(largest_of(y), larger) * factor);
  const LaneWords codes = target.dtype == DType::kFloat8E4M3
                              ? encoded_over<DType::kFloat8E4M3>(y, factor, scale)
                              : encoded_over<DType::kFloat8E5M2>(y, factor, scale);
  if (!live) return;
  store_pieces<1>(codes, row.stage.gap(), target.to);
  if (step.kind == kQueryRow) store_scale<kSpec>(p, token_here<kSpec>(p, step), head, scale);
}

/// A row of padding becomes 0.
template <RopePairsSpec kSpec>
inline void clear_row(const RopePairsParams& p, const PairsTarget& target,
                      const PairsRow<kSpec>& row) {
  const PairsStep& step = row.step;
  const std::int32_t head = row.stage.head(step);
  if (head >= num_heads(p, step.kind)) return;
  if (target.to != nullptr) {
    if (is_fp8(target.dtype)) {
      store_pieces<1>({}, row.stage.gap(), target.to);
    } else {
      store_pieces<2>({}, row.stage.gap(), target.to);
    }
  }
  if (step.kind == kQueryRow) store_scale<kSpec>(p, token_here<kSpec>(p, step), head, 0.0F);
}

}  // namespace hpcattn
