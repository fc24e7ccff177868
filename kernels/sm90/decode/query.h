// SPDX-License-Identifier: Apache-2.0
// q of a pass in shared memory, as the products take it: 16-bit numbers for 16-bit K, e4m3 for fp8
// K. A 16-bit query is quantised here, a row by its largest magnitude, so fp8 pages need no
// prologue.
#pragma once

#include "kernels/generic/attention/query.h"
#include "kernels/sm90/decode/multiply.h"

namespace hpcattn {

inline constexpr float kLargestE4M3 = 448.0F;

/// 16 dims of a row of q as e4m3, of magnitudes times `factor`; 0 for rows that are not there.
template <AttentionSpec kSpec>
inline uint4 quantised_unit(const std::uint32_t (&pairs)[2][4], float factor) {
  std::uint32_t words[4];
  HPCATTN_UNROLL
  for (int i = 0; i < 4; ++i) {
    float x[4];
    HPCATTN_UNROLL
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t pair = pairs[i / 2][i % 2 * 2 + j / 2];
      const std::uint32_t code = j % 2 == 0 ? pair & 0xffffU : pair >> 16;
      x[j] = decode<AttentionConfig<kSpec>::kCompute>(code) * factor;
    }
    words[i] = encode_pair<DType::kFloat8E4M3>(x[0], x[1]) |
               encode_pair<DType::kFloat8E4M3>(x[2], x[3]) << 16;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/// Rows of the pass to `q_smem`, kQueryStride bytes apart, and zeros up to kDecodeRows. Where it is
/// quantised, the rows' factors in `infos` take its scale; they were written by all threads before.
template <DecodeSpec kSpec>
inline void store_decode_query(const AttentionParams& p, const plan::Task& task, char* q_smem,
                               RowInfo* infos, int num_rows, int thread) {
  constexpr AttentionSpec kAttention = kSpec.attention;
  using Math = DecodeMath<kSpec>;
  if constexpr (!Math::kFp8) {
    static_assert(Math::kQueryStride == AttentionConfig<kAttention>::kQStride);
    store_query<kAttention, kDecodeRows>(p, task, q_smem, thread);
  } else {
    constexpr int kUnits = kAttention.head_dim / 16;
    constexpr int kThreadsPerRow = kAttentionThreads / kDecodeRows;
    static_assert(kUnits % kThreadsPerRow == 0);
    const std::uint32_t sign = p.scale < 0.0F ? 0x80008000U : 0U;
    const int i = thread / kThreadsPerRow;
    const int row = task.row_begin + i;
    const bool live = row < task.row_end;
    const RowPlace place(task.first_token, task.kv_head, p.group, row);
    const std::int64_t source = place.token * p.q_token + place.head * p.q_head;
    std::uint32_t pairs[kUnits / kThreadsPerRow][2][4] = {};
    float largest = 0.0F;
    HPCATTN_UNROLL
    for (int j = 0; j < kUnits / kThreadsPerRow; ++j) {
      const int unit = thread % kThreadsPerRow + j * kThreadsPerRow;
      HPCATTN_UNROLL
      for (int half = 0; half < 2; ++half) {
        if (live) load_query_unit<kAttention>(p, source + unit * 16 + half * 8, pairs[j][half]);
        HPCATTN_UNROLL
        for (int k = 0; k < 4; ++k) {
          pairs[j][half][k] ^= sign;
          constexpr DType kCompute = Math::kCompute;
          largest = fmaxf(largest, fabsf(decode<kCompute>(pairs[j][half][k] & 0xffffU)));
          largest = fmaxf(largest, fabsf(decode<kCompute>(pairs[j][half][k] >> 16)));
        }
      }
    }
    float scale = 1.0F;  // a float8 query is what it is
    if constexpr (!is_fp8(kAttention.q_dtype)) {
      HPCATTN_UNROLL
      for (int step = kThreadsPerRow / 2; step > 0; step /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, step));
      }
      if (largest > 0.0F) scale = fmaxf(largest * (1.0F / kLargestE4M3), 1e-30F);
      if (thread % kThreadsPerRow == 0 && i < num_rows) infos[i].factor *= scale;
    }
    HPCATTN_UNROLL
    for (int j = 0; j < kUnits / kThreadsPerRow; ++j) {
      const int unit = thread % kThreadsPerRow + j * kThreadsPerRow;
      *reinterpret_cast<uint4*>(q_smem + i * Math::kQueryStride + unit * 16) =
          quantised_unit<kAttention>(pairs[j], 1.0F / scale);
    }
  }
}

}  // namespace hpcattn
