// SPDX-License-Identifier: Apache-2.0
// What one lane does to its eight elements of a row. Numbers are float64 between load and store: a
// rotation may cancel nearly all of a number, and each output is then still rounded once.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/fused/rope/params.h"
#include "kernels/tile/convert.h"

namespace hpcattn {

struct RopeLane {
  // Of the token: y = x * cos + partner * sin.
  double cos[kLaneElements];
  double sin[kLaneElements];
  // Of the row
  float x[kLaneElements];
  float partner[kLaneElements];
  double y[kLaneElements];
};

/// How element `element` turns: with which pair's angle, and which other element.
struct Turn {
  std::int32_t pair = -1;  // -1: it passes through
  std::int32_t partner = 0;
  bool first = false;  // of its pair
};

constexpr Turn turn_of(std::int32_t element, std::int32_t rotary_dim, bool interleaved) {
  if (element >= rotary_dim) return {};
  if (interleaved) return {element / 2, element ^ 1, element % 2 == 0};
  const std::int32_t half = rotary_dim / 2;
  if (element < half) return {element, element + half, true};
  return {element - half, element - half, false};
}

/// Which of the three positions a pair follows.
constexpr int axis_of(std::int32_t pair, const std::int32_t (&sections)[3]) {
  return pair < sections[0] ? 0 : pair < sections[0] + sections[1] ? 1 : 2;
}

/// Elements of a row that lane `lane` holds: kLaneElements or none.
constexpr bool has_elements(const RopeParams& p, int lane) {
  return lane * kLaneElements < p.head_dim;
}

inline void load_turns(const RopeParams& p, const std::int64_t (&positions)[3], int lane,
                       RopeLane& state) {
  const std::int32_t begin = lane * kLaneElements;
  const auto row_of = [&](std::int32_t pair) {
    const int axis = p.mrope ? axis_of(pair, p.sections) : 0;
    const std::int64_t position = axis == 0   ? positions[0]
                                  : axis == 1 ? positions[1]
                                              : positions[2];
    return p.cos_sin + position * p.cos_sin_stride;
  };
  float cos[kLaneElements];
  float sin[kLaneElements];
  if (p.cos_sin_vectors && begin < p.rotary_dim) {
    const std::int32_t pair = turn_of(begin, p.rotary_dim, false).pair;
    const std::int64_t bytes = size_bytes(p.cos_sin_dtype);
    const char* row = row_of(pair) + pair * bytes;
    load_numbers(row, p.cos_sin_dtype, kLaneElements, true, cos);
    load_numbers(row + p.rotary_dim / 2 * bytes, p.cos_sin_dtype, kLaneElements, true, sin);
  } else {
    HPCATTN_UNROLL
    for (int i = 0; i < kLaneElements; ++i) {
      const Turn turn = turn_of(begin + i, p.rotary_dim, p.interleaved);
      cos[i] = sin[i] = 0.0F;
      if (turn.pair < 0) continue;
      const char* row = row_of(turn.pair);
      cos[i] = load_float(row, p.cos_sin_dtype, turn.pair);
      sin[i] = load_float(row, p.cos_sin_dtype, p.rotary_dim / 2 + turn.pair);
    }
  }
  HPCATTN_UNROLL
  for (int i = 0; i < kLaneElements; ++i) {
    const Turn turn = turn_of(begin + i, p.rotary_dim, p.interleaved);
    // x * 1 + 0 * -0 is x, also where x is -0.
    state.cos[i] = turn.pair < 0 ? 1.0 : static_cast<double>(cos[i]);
    state.sin[i] = turn.pair < 0 ? -0.0 : static_cast<double>(turn.first ? -sin[i] : sin[i]);
  }
}

/// Loads elements of a row, and for each the one that it turns with (0: none).
template <DType kDType>
inline void load_row(const RopeParams& p, const RowsView& rows, const char* row, int lane,
                     RopeLane& state) {
  constexpr auto kBytes = static_cast<int>(size_bytes(kDType));
  const std::int32_t begin = lane * kLaneElements;
  decode<kDType>(load_codes<kBytes>(row + begin * kBytes, has_elements(p, lane) ? kLaneElements : 0,
                                    rows.vectors),
                 state.x);
  const std::int32_t half = p.rotary_dim / 2;
  if (p.interleaved) {
    HPCATTN_UNROLL
    for (int i = 0; i < kLaneElements; ++i) {
      state.partner[i] = begin + i < p.rotary_dim ? state.x[i ^ 1] : 0.0F;
    }
  } else if (half % kLaneElements == 0) {
    const std::int32_t from = begin < half ? begin + half : begin - half;
    decode<kDType>(load_codes<kBytes>(row + from * kBytes, begin < p.rotary_dim ? kLaneElements : 0,
                                      rows.vectors),
                   state.partner);
  } else {
    HPCATTN_UNROLL
    for (int i = 0; i < kLaneElements; ++i) {
      const Turn turn = turn_of(begin + i, p.rotary_dim, false);
      state.partner[i] = 0.0F;
      if (turn.pair >= 0) {
        state.partner[i] =
            decode<kDType>(load_codes<kBytes>(row + turn.partner * kBytes, 1, false).code(0));
      }
    }
  }
}

/// y = RoPE(x)
inline void rotate(RopeLane& state) {
  HPCATTN_UNROLL
  for (int i = 0; i < kLaneElements; ++i) {
    state.y[i] =
        std::fma(double{state.partner[i]}, state.sin[i], double{state.x[i]} * state.cos[i]);
  }
}

inline double sum_of_squares(const double (&y)[kLaneElements]) {
  double sum = 0.0;
  HPCATTN_UNROLL
  for (int i = 0; i < kLaneElements; ++i) sum = std::fma(y[i], y[i], sum);
  return sum;
}

/// Of what the norm's mean square is taken of; leaves the rotated row in y where RoPE comes first.
inline double square_to_norm(const RopeParams& p, RopeLane& state) {
  if (!p.norm_first) {
    rotate(state);
  } else {
    HPCATTN_UNROLL
    for (int i = 0; i < kLaneElements; ++i) state.y[i] = state.x[i];
  }
  return sum_of_squares(state.y);
}

/// 1 / sqrt(mean square + eps). Without an epsilon, zeros stay zeros.
inline double norm_factor(double sum_squares, std::int64_t count, double eps) {
  const double under_root = sum_squares / static_cast<double>(count) + eps;
  return under_root == 0.0 ? 0.0 : 1.0 / std::sqrt(under_root);
}

/// Weights `first` and on; each is one element's.
inline void load_weights(const WeightView& weights, std::int64_t first, int count,
                         float (&w)[kLaneElements]) {
  const char* from = weights.data + first * weights.stride;
  if (weights.stride == size_bytes(weights.dtype)) {
    return load_numbers(from, weights.dtype, count, weights.vectors, w);
  }
  HPCATTN_UNROLL
  for (int i = 0; i < kLaneElements; ++i) {
    w[i] = i < count ? load_float(from + i * weights.stride, weights.dtype, 0) : 0.0F;
  }
}

/// After square_to_norm(): y = RMSNorm(RoPE(x)) or RoPE(RMSNorm(x)). `first_weight`: of the row.
inline void norm(const RopeParams& p, const WeightView& weights, std::int64_t first_weight,
                 double factor, int lane, RopeLane& state) {
  const std::int32_t begin = lane * kLaneElements;
  float w[kLaneElements];
  load_weights(weights, first_weight + begin, has_elements(p, lane) ? kLaneElements : 0, w);
  if (!p.norm_first) {
    HPCATTN_UNROLL
    for (int i = 0; i < kLaneElements; ++i) state.y[i] *= w[i] * factor;
    return;
  }
  HPCATTN_UNROLL
  for (int i = 0; i < kLaneElements; ++i) state.y[i] = state.x[i] * (w[i] * factor) * state.cos[i];
  const std::int32_t half = p.rotary_dim / 2;
  float partner_w[kLaneElements];
  if (p.interleaved) {
    HPCATTN_UNROLL
    for (int i = 0; i < kLaneElements; ++i) {
      partner_w[i] = begin + i < p.rotary_dim ? w[i ^ 1] : 0.0F;
    }
  } else if (half % kLaneElements == 0) {
    const std::int32_t from = begin < half ? begin + half : begin - half;
    load_weights(weights, first_weight + from, begin < p.rotary_dim ? kLaneElements : 0, partner_w);
  } else {
    HPCATTN_UNROLL
    for (int i = 0; i < kLaneElements; ++i) {
      const Turn turn = turn_of(begin + i, p.rotary_dim, false);
      partner_w[i] = turn.pair < 0
                         ? 0.0F
                         : load_float(weights.data + (first_weight + turn.partner) * weights.stride,
                                      weights.dtype, 0);
    }
  }
  HPCATTN_UNROLL
  for (int i = 0; i < kLaneElements; ++i) {
    state.y[i] = std::fma(state.partner[i] * (partner_w[i] * factor), state.sin[i], state.y[i]);
  }
}

/// The largest magnitude that is a number.
inline double largest_of(const double (&y)[kLaneElements]) {
  double largest = 0.0;
  HPCATTN_UNROLL
  for (int i = 0; i < kLaneElements; ++i) {
    const double magnitude = y[i] < 0.0 ? -y[i] : y[i];
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

/// The scale that brings `amax` to `upper_max`, held within float32's normal numbers.
inline float dynamic_scale(double amax, double upper_max) {
  if (amax == 0.0) return 1.0F;
  constexpr double kSmallest = 0x1p-126;
  constexpr double kLargest = 0x1.fffffep127;
  const double scale = amax / upper_max;
  return static_cast<float>(scale < kSmallest ? kSmallest : scale > kLargest ? kLargest : scale);
}

/// Stores the lane's part of y at `row`, over `scale` where the target is fp8.
inline void store_row(const double (&y)[kLaneElements], double scale, char* row, DType dtype,
                      bool vectors, int lane) {
  char* to = row + lane * kLaneElements * size_bytes(dtype);
  if (!is_fp8(dtype)) return store_numbers(y, to, dtype, kLaneElements, vectors);
  const double inverse = 1.0 / scale;
  double scaled[kLaneElements];
  HPCATTN_UNROLL
  for (int i = 0; i < kLaneElements; ++i) scaled[i] = divided(y[i], scale, inverse);
  store_numbers(scaled, to, dtype, kLaneElements, vectors);
}

}  // namespace hpcattn
