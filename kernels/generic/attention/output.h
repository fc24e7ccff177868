// SPDX-License-Identifier: Apache-2.0
// Results of rows on their way to memory: the sink, the LSE, scales and the dtype of out. Shared by
// the attention kernel and the combine kernel.
#pragma once

#include <cstdint>

#include "kernels/generic/attention/params.h"
#include "kernels/generic/attention/scores.h"
#include "kernels/ptx/math.h"
#include "kernels/tile/convert.h"

namespace hpcattn {

/// One row's output before it is normalised: sum of 2^(score - reference) and what to do with it.
struct RowResult {
  float factor = 0.0F;              // of the accumulated output
  float lse = negative_infinity();  // log2
};

inline RowResult finish_row(float reference, float sum, float sink) {
  const float sink_log2 = sink * kLog2E;
  const float top = fmaxf(reference, sink_log2);
  if (top == negative_infinity()) return {};
  const float share = ptx::ex2(reference - top);
  const float total = sum * share + ptx::ex2(sink_log2 - top);
  return {share * ptx::rcp(total), top + ptx::lg2(total)};
}

inline float load_sink(const AttentionOutput& o, int head) {
  if (o.sinks == nullptr) return negative_infinity();
  const std::int64_t at = head * o.sink_stride;
  if (o.sink_dtype == DType::kFloat32) return static_cast<const float*>(o.sinks)[at];
  const std::uint32_t bits = static_cast<const std::uint16_t*>(o.sinks)[at];
  return o.sink_dtype == DType::kBFloat16 ? decode<DType::kBFloat16>(bits)
                                          : decode<DType::kFloat16>(bits);
}

/// v_scale / out_scale, for the heads of one KV head.
inline float value_factor(const AttentionOutput& o, int kv_head) {
  float factor = 1.0F;
  if (o.v_scale != nullptr) factor = o.v_scale[kv_head * o.v_scale_stride];
  if (o.out_scale != nullptr) factor = __fdividef(factor, *o.out_scale);
  return factor;
}

/// Elements `dim` and `dim + 1` of a row of out, which is of kOut.
template <DType kOut>
inline void store_pair(const AttentionOutput& o, std::int64_t row, int dim, float a, float b) {
  const std::int64_t at = row + dim;
  if constexpr (kOut == DType::kFloat32) {
    auto* target = static_cast<float*>(o.out) + at;
    target[0] = a;
    target[1] = b;
  } else if constexpr (is_fp8(kOut)) {
    const std::uint32_t pair = encode_pair<kOut>(a, b);
    auto* target = static_cast<std::uint8_t*>(o.out) + at;
    target[0] = static_cast<std::uint8_t>(pair);
    target[1] = static_cast<std::uint8_t>(pair >> 8);
  } else {
    const std::uint32_t pair = encode_pair<kOut>(a, b);
    auto* target = static_cast<std::uint16_t*>(o.out) + at;
    if (o.out_pairs) {
      *reinterpret_cast<std::uint32_t*>(target) = pair;
    } else {
      target[0] = static_cast<std::uint16_t>(pair);
      target[1] = static_cast<std::uint16_t>(pair >> 16);
    }
  }
}

/// Elements `dim` to `dim + 3`, `dim` a multiple of 4.
template <DType kOut>
inline void store_quad(const AttentionOutput& o, std::int64_t row, int dim, const float4& x) {
  if constexpr (size_bytes(kOut) == 2) {
    if (o.out_vectors) {
      *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(o.out) + row + dim) =
          make_uint2(encode_pair<kOut>(x.x, x.y), encode_pair<kOut>(x.z, x.w));
      return;
    }
  }
  store_pair<kOut>(o, row, dim, x.x, x.y);
  store_pair<kOut>(o, row, dim + 2, x.z, x.w);
}

/// Calls body(constant) with out's dtype as a type: the branch is outside of the loops over dims.
template <DType kValue>
struct DTypeConstant {
  static constexpr DType value = kValue;
};
template <typename Body>
inline void with_out_dtype(const AttentionOutput& o, const Body& body) {
  switch (o.out_dtype) {
    case DType::kFloat32: return body(DTypeConstant<DType::kFloat32>{});
    case DType::kFloat16: return body(DTypeConstant<DType::kFloat16>{});
    case DType::kFloat8E4M3: return body(DTypeConstant<DType::kFloat8E4M3>{});
    default: return body(DTypeConstant<DType::kBFloat16>{});
  }
}

inline void store_lse(const AttentionOutput& o, int token, int head, float lse_log2) {
  if (o.lse == nullptr) return;
  o.lse[token * o.lse_token + head * o.lse_head] = lse_log2 * kLn2;
}

/// The token and head of a task's row.
struct RowPlace {
  int token;
  int head;
  RowPlace(int first_token, int kv_head, const FastDivide& group, int row) {
    const int token_of_request = group.divide(row);
    const auto heads = static_cast<int>(group.divisor);
    token = first_token + token_of_request;
    head = kv_head * heads + row - token_of_request * heads;
  }
  std::int64_t out_row(const AttentionOutput& o) const {
    return token * o.out_token + head * o.out_head;
  }
};

}  // namespace hpcattn
