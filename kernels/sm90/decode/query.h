// SPDX-License-Identifier: Apache-2.0
// q of a pass in shared memory, as the products take it. With fp8 pages these are of float16; a
// bfloat16 row is scaled by a power of two, so that its largest number lies near 2^10. That changes
// none of its numbers but those below 2^-24 of the largest.
#pragma once

#include "kernels/generic/attention/query.h"
#include "kernels/sm90/decode/multiply.h"

namespace hpcattn {

/// Row `i` of a bfloat16 q as float16, by eight neighbouring lanes of which this is `part`. Returns
/// the scale, which the row's factor takes.
template <DecodeSpec kSpec>
inline float store_scaled_row(const AttentionParams& p, const plan::Task& task, char* q_smem, int i,
                              int part) {
  constexpr AttentionSpec kAttention = kSpec.attention;
  constexpr int kParts = 8;
  constexpr int kUnits = kAttention.head_dim / 8 / kParts;  // of eight elements
  const std::uint32_t sign = p.scale < 0.0F ? 0x80008000U : 0U;
  const int row = task.row_begin + i;
  const RowPlace place(task.first_token, task.kv_head, p.group, row);
  const std::int64_t source = place.token * p.q_token + place.head * p.q_head;
  std::uint32_t pairs[kUnits][4] = {};
  float largest = 0.0F;
  HPCATTN_UNROLL
  for (int j = 0; j < kUnits; ++j) {
    if (row < task.row_end) {
      load_query_unit<kAttention>(p, source + (part + j * kParts) * 8, pairs[j]);
    }
    HPCATTN_UNROLL
    for (int k = 0; k < 4; ++k) {
      largest = fmaxf(largest, fabsf(decode<DType::kBFloat16>(pairs[j][k] & 0xffffU)));
      largest = fmaxf(largest, fabsf(decode<DType::kBFloat16>(pairs[j][k] >> 16)));
    }
  }
  HPCATTN_UNROLL
  for (int step = kParts / 2; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, step));
  }
  // 2^e at most `largest`, where its inverse is a normal number too.
  const float clamped = fminf(fmaxf(largest, 1e-30F), 1e30F);
  const unsigned exponent = __float_as_uint(clamped) & 0x7f800000U;
  const float inverse = __uint_as_float(0x7f000000U - exponent) * 1024.0F;
  HPCATTN_UNROLL
  for (int j = 0; j < kUnits; ++j) {
    HPCATTN_UNROLL
    for (std::uint32_t& pair : pairs[j]) {
      const float low = decode<DType::kBFloat16>(pair & 0xffffU) * inverse;
      const float high = decode<DType::kBFloat16>(pair >> 16) * inverse;
      pair = ptx::pack2<DType::kFloat16>(low, high) ^ sign;
    }
    store_query_unit<kAttention>(pairs[j], part + j * kParts,
                                 q_smem + i * DecodeMath<kSpec>::kQueryStride);
  }
  return __uint_as_float(exponent) * (1.0F / 1024.0F);
}

/// What each of the pass's rows sees to `infos`, and kSpec.rows rows of q to `q_smem`, kQueryStride
/// bytes apart; zeros where a row is not there.
template <DecodeSpec kSpec>
inline void prepare_rows(const AttentionParams& p, const plan::Task& task, char* q_smem,
                         RowInfo* infos, int thread) {
  constexpr AttentionSpec kAttention = kSpec.attention;
  static_assert(DecodeMath<kSpec>::kQueryStride == AttentionConfig<kAttention>::kQStride);
  constexpr int kRows = kSpec.rows;
  static_assert(kRows % 16 == 0, "threads are dealt out to 16 rows");
  if constexpr (!is_fp8(kAttention.kv_dtype) || kAttention.q_dtype != DType::kBFloat16) {
    write_row_infos<kAttention, kRows>(p, task, infos, thread);
    store_query<kAttention, kRows>(p, task, q_smem, thread);
  } else {
    HPCATTN_NO_UNROLL
    for (int first = 0; first < kRows; first += 16) {
      const int i = first + thread / 8;
      const float scale = store_scaled_row<kSpec>(p, task, q_smem, i, thread % 8);
      if (thread % 8 != 0) continue;
      infos[i] = row_info_of<kAttention>(p, task, i);
      infos[i].factor *= scale;
    }
  }
}

}  // namespace hpcattn
