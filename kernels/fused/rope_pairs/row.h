// SPDX-License-Identifier: Apache-2.0
// One row of each team of a warp: turned, normed, rounded and stored.
#pragma once

#include <cstdint>

#include "kernels/fused/rope_pairs/stage.h"
#include "kernels/fused/rope_pairs/turn.h"
#include "kernels/ptx/math.h"

namespace hpcattn {

inline constexpr unsigned kWholeWarp = 0xffffffffU;

/// What the rows of one kind of a token have in common.
struct PairsSegment {
  bool padding = false;
  // The lane's first piece of head 0, null where nothing is stored:
  char* in_cache = nullptr;
  char* in_output = nullptr;
};

/// What combine(x, y) makes of the lanes of a row, in an order that depends on their number alone.
template <typename Combine>
inline float over_row(float value, int num_lanes, const Combine& combine) {
  HPCATTN_UNROLL
  for (int distance = 8; distance > 0; distance /= 2) {
    if (distance < 4 || distance < num_lanes) {
      value = combine(value, __shfl_xor_sync(kWholeWarp, value, distance));
    }
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

/// The row of each team that is worked on.
template <RopePairsSpec kSpec>
struct PairsRow {
  const PairsStage<kSpec>& stage;
  std::int32_t index;  // of its step in the unit
  PairsStep step;

  __device__ LaneWords words() const { return stage.row(index); }
};

/// Turns those pairs again of which a rotation left so little that rounded coefficients show.
/// Seldom run: it reads what it needs once more, and keeps nothing in registers for it.
template <RopePairsSpec kSpec>
inline void turn_carefully(const RopePairsParams& p, const PairsRow<kSpec>& row,
                           LaneTurned& lane) {
  HPCATTN_UNROLL
  for (int i = 0; i < 2 * kLanePairs; ++i) row.stage.number(i) = lane.y.of[i];
  const LanePieces pieces = pieces_here<kSpec>(p);
  const char* table = table_row(p.rope, row.stage.notes().position);
  const WeightView& weights = p.rope.weights[row.step.kind];
  HPCATTN_NO_UNROLL
  for (std::uint32_t open = lane.doubtful; open != 0; open &= open - 1) {
    const int pair = kLanePairs - __ffs(static_cast<int>(open));
    const int at_a = place_of_a<kSpec.interleaved>(pair);
    const int at_b = place_of_b<kSpec.interleaved>(pair);
    CarefulPair x{.a = row.stage.element(row.index, at_a), .b = row.stage.element(row.index, at_b)};
    if constexpr (kSpec.norm != PairsNorm::kNone) {
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
    const CarefulPair y = turned_carefully<kSpec>(x, pieces.turns);
    // An infinity has no remainder.
    if (y.a == y.a) row.stage.number(at_a) = y.a;
    if (y.b == y.b) row.stage.number(at_b) = y.b;
  }
  HPCATTN_UNROLL
  for (int i = 0; i < 2 * kLanePairs; ++i) lane.y.of[i] = row.stage.number(i);
}

/// Turns a row of q or k, and gives the norm's factor. All lanes of the warp come here.
/// `turns_spent`: the coefficients were given up, and must be loaded anew.
template <RopePairsSpec kSpec>
inline float turn_row(const RopePairsParams& p, const PairsRow<kSpec>& row, PairTurns& turns,
                      LaneTurned& lane, bool& turns_spent) {
  float factor = 1.0F;
  int range = kInRange;
  HPCATTN_NO_UNROLL
  while (true) {
    lane = turned<kSpec>(decoded<kSpec.dtype>(row.words()), turns, p.doubtful_shares[row.step.kind]);
    if constexpr (kSpec.norm == PairsNorm::kNone) break;
    const float sum =
        over_row(lane.squares, p.num_lanes, [](float x, float other) { return x + other; });
    const float under_root = fmaf(sum, p.inverse_head_dim, p.eps[range]);
    factor = reciprocal_root(under_root);
    const bool inside = under_root >= 0x1p-80F && under_root <= 0x1p100F;
    const bool again = range == kInRange && !inside;
    if (!__any_sync(kWholeWarp, again)) break;
    if (!again) continue;
    range = under_root < 0x1p-80F ? kTinyRows : kHugeRows;
    const float scale = range == kTinyRows ? kTinyRowScale : kHugeRowScale;
    const LaneNumbers x = decoded<kSpec.dtype>(row.words());
    row.stage.put(row.index,
                  encoded<kSpec.dtype>(x, [=](float number) { return number * scale; }));
  }
  // A lane that passes its numbers through has multiplied partners by 0.
  if (p.rope.rotary_dim < p.rope.head_dim && !pieces_here<kSpec>(p).turns &&
      has_infinite<kSpec.dtype>(row.words())) {
    lane.doubtful = (1U << kLanePairs) - 1;
  }
  turns_spent = __any_sync(kWholeWarp, lane.doubtful != 0);
  if (turns_spent) {
    turn_carefully<kSpec>(p, row, lane);
    turns = {};  // so that no register holds them meanwhile
  }
  return factor;
}

/// Stores the lane's two pieces, of 16 or 8 bytes.
template <int kBytes>
inline void store_pieces(const LaneWords& codes, std::int32_t gap, char* to) {
  using Codes = LaneCodes<kBytes>;
  HPCATTN_UNROLL
  for (int half = 0; half < 2; ++half) {
    Codes piece;
    HPCATTN_UNROLL
    for (int i = 0; i < Codes::kWords; ++i) piece.words[i] = codes.words[half * Codes::kWords + i];
    store_codes<kBytes>(piece, to + half * gap * kBytes, kLaneElements, true);
  }
}

/// Stores a row wherever it goes: y times `factor`. All lanes of the warp come here.
template <RopePairsSpec kSpec>
inline void store_row(const RopePairsParams& p, const PairsSegment& segment, const PairsStep& step,
                      const LaneNumbers& y, float factor) {
  const int kind = step.kind;
  const std::int32_t heads = num_heads(p, kind);
  const LanePieces pieces = pieces_here<kSpec>(p);
  const bool live = step.head < heads && pieces.live;
  const std::int32_t head = min(step.head, heads - 1);
  // One body for both targets: the conversions to each dtype are most of the kernel's code.
  HPCATTN_NO_UNROLL
  for (int target = 0; target < 2; ++target) {
    const bool to_cache = target == 0;
    char* to = to_cache ? segment.in_cache : segment.in_output;
    if (to == nullptr) continue;
    const int side = kind == kValueRow ? 1 : 0;
    to += std::int64_t{head} * (to_cache ? p.cache_strides[side] : p.output_strides[kind]);
    const DType dtype = to_cache ? p.rope.caches[side].dtype : p.rope.outputs[kind].dtype;
    if (!is_fp8(dtype)) {
      if (live) store_pieces<2>(encoded_over<kSpec.dtype>(y, factor, 1.0F), pieces.gap(), to);
      continue;
    }
    const ScaleView& scales = p.rope.scales[kind];
    float scale;
    if (kind == kQueryRow && scales.data == nullptr) {
      const float largest = over_row(largest_of(y), p.num_lanes,
                                     [](float x, float other) { return fmaxf(x, other); });
      scale = own_scale(p, largest * factor);
    } else {
      scale = scales.at(kind == kQueryRow ? 0 : head);
    }
    const LaneWords codes = dtype == DType::kFloat8E4M3
                                ? encoded_over<DType::kFloat8E4M3>(y, factor, scale)
                                : encoded_over<DType::kFloat8E5M2>(y, factor, scale);
    if (!live) continue;
    store_pieces<1>(codes, pieces.gap(), to);
    const RowsView& out_scales = p.rope.out_q_scale;
    if (kind == kQueryRow && out_scales.data != nullptr && lane_of_row(p) == 0) {
      *reinterpret_cast<float*>(out_scales.row(step.token, head)) = scale;
    }
  }
}

/// A row of padding becomes 0.
template <RopePairsSpec kSpec>
inline void clear_row(const RopePairsParams& p, const PairsSegment& segment,
                      const PairsStep& step) {
  const LanePieces pieces = pieces_here<kSpec>(p);
  if (!pieces.live || step.head >= num_heads(p, step.kind)) return;
  if (segment.in_output != nullptr) {
    char* to = segment.in_output + std::int64_t{step.head} * p.output_strides[step.kind];
    if (size_bytes(p.rope.outputs[step.kind].dtype) == 1) {
      store_pieces<1>({}, pieces.gap(), to);
    } else {
      store_pieces<2>({}, pieces.gap(), to);
    }
  }
  const RowsView& out_scales = p.rope.out_q_scale;
  if (step.kind == kQueryRow && out_scales.data != nullptr && lane_of_row(p) == 0) {
    *reinterpret_cast<float*>(out_scales.row(step.token, step.head)) = 0.0F;
  }
}

}  // namespace hpcattn
