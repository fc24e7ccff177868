// SPDX-License-Identifier: Apache-2.0
// A task's rows: what each of them sees, and q in shared memory as the products take it.
#pragma once

#include <cstdint>

#include "kernels/generic/attention/config.h"
#include "kernels/generic/attention/output.h"
#include "kernels/generic/attention/params.h"
#include "kernels/ptx/memory.h"
#include "kernels/tile/unroll.h"

namespace hpcattn {

/// What a row of a task needs, by its number within the request.
template <AttentionSpec kSpec>
inline RowInfo row_info(const AttentionParams& p, const plan::Task& task, int row) {
  RowInfo info{0, 0, 0, 1.0F, 0.0F};
  const RowPlace place(task.first_token, task.kv_head, p.group, row);
  info.position = task.kv_len - task.num_tokens + place.token - task.first_token;
  const plan::KvRange seen = plan::visible(p.mask, info.position, task.kv_len);
  // Of a split whose tokens the row does not see, nothing is left.
  const std::int64_t end = task.kv_end;
  info.kv_begin = max(static_cast<int>(min(seen.begin, end)), task.kv_begin);
  info.kv_end = max(static_cast<int>(min(seen.end, end)), info.kv_begin);
  float factor = fabsf(p.scale);
  if (p.k_scale != nullptr) factor *= p.k_scale[task.kv_head * p.k_scale_stride];
  if (p.q_scale != nullptr) {
    const int token = p.q_scale_by_request ? place.token - task.first_token : place.token;
    factor *= p.q_scale[task.request * p.q_scale_request + token * p.q_scale_token +
                        place.head * p.q_scale_head];
  }
  factor *= kSpec.softcap ? 2.0F * kLog2E / p.softcap : kLog2E;
  // Above 0, so that a score of -inf stays one; what is left of a factor of 0 changes nothing.
  info.factor = fmaxf(factor, 1e-30F);
  if constexpr (kSpec.alibi) info.slope = p.alibi_slopes[place.head * p.alibi_stride] * kLog2E;
  return info;
}

/// Of row `i` of a task's rows; those past its end see nothing.
template <AttentionSpec kSpec>
inline RowInfo row_info_of(const AttentionParams& p, const plan::Task& task, int i) {
  const int row = task.row_begin + i;
  return row < task.row_end ? row_info<kSpec>(p, task, row) : RowInfo{0, 0, 0, 1.0F, 0.0F};
}

/// infos[row] for the kRows rows of a tile.
template <AttentionSpec kSpec, int kRows>
inline void write_row_infos(const AttentionParams& p, const plan::Task& task, RowInfo* infos,
                            int thread) {
  for (int i = thread; i < kRows; i += kAttentionThreads) {
    infos[i] = row_info_of<kSpec>(p, task, i);
  }
}

/// q of a task is on its way to the L2 cache; by kThreads threads.
template <AttentionSpec kSpec, int kThreads>
inline void fetch_query(const AttentionParams& p, const plan::Task& task, int thread) {
  constexpr int kElement = static_cast<int>(size_bytes(kSpec.q_dtype));
  HPCATTN_NO_UNROLL
  for (int row = task.row_begin + thread; row < task.row_end; row += kThreads) {
    const RowPlace place(task.first_token, task.kv_head, p.group, row);
    const char* const q = static_cast<const char*>(p.q) +
                          (place.token * p.q_token + place.head * p.q_head) * kElement;
    HPCATTN_UNROLL
    for (int byte = 0; byte < kSpec.head_dim * kElement; byte += 128) ptx::fetch_into_l2(q + byte);
  }
}

/// Eight elements of q, as pairs of the compute dtype.
template <AttentionSpec kSpec>
inline void load_query_unit(const AttentionParams& p, std::int64_t element,
                            std::uint32_t (&pairs)[4]) {
  constexpr DType kCompute = AttentionConfig<kSpec>::kCompute;
  if constexpr (is_fp8(kSpec.q_dtype)) {
    const auto* source = static_cast<const std::uint8_t*>(p.q) + element;
    std::uint32_t bytes[2] = {};
    if (p.q_vectors) {
      const uint2 both = *reinterpret_cast<const uint2*>(source);
      bytes[0] = both.x;
      bytes[1] = both.y;
    } else {
      for (int i = 0; i < 8; ++i) {
        bytes[i / 4] |= static_cast<std::uint32_t>(source[i]) << (i % 4 * 8);
      }
    }
    HPCATTN_UNROLL
    for (int i = 0; i < 2; ++i) {
      ptx::widen4<kSpec.q_dtype, kCompute>(bytes[i], pairs[2 * i], pairs[2 * i + 1]);
    }
  } else {
    const auto* source = static_cast<const std::uint16_t*>(p.q) + element;
    if (p.q_vectors) {
      const uint4 all = *reinterpret_cast<const uint4*>(source);
      pairs[0] = all.x;
      pairs[1] = all.y;
      pairs[2] = all.z;
      pairs[3] = all.w;
    } else {
      HPCATTN_UNROLL
      for (int i = 0; i < 4; ++i) {
        pairs[i] = source[2 * i] | static_cast<std::uint32_t>(source[2 * i + 1]) << 16;
      }
    }
  }
}

/// Eight elements of a row of q to shared memory; with fp8 K in the order of its dims
/// (fragments.h).
template <AttentionSpec kSpec>
inline void store_query_unit(const std::uint32_t (&pairs)[4], int unit, char* row) {
  if constexpr (is_fp8(kSpec.kv_dtype)) {
    auto* block = reinterpret_cast<std::uint32_t*>(row + unit / 2 * 32);
    HPCATTN_UNROLL
    for (int i = 0; i < 4; ++i) block[fp8_place_of_pair(unit % 2 * 4 + i)] = pairs[i];
  } else {
    *reinterpret_cast<uint4*>(row + unit * 16) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
}

/// q of the task's rows to shared memory; rows past its end become zeros. A negative scale turns
/// the sign of q, so that the largest raw score is the largest score.
template <AttentionSpec kSpec, int kRows>
inline void store_query(const AttentionParams& p, const plan::Task& task, char* q_smem,
                        int thread) {
  using Config = AttentionConfig<kSpec>;
  constexpr int kUnits = Config::kHeadDim / 8;
  constexpr int kThreadsPerRow = 8;
  constexpr int kRowsAtOnce = kAttentionThreads / kThreadsPerRow;
  const std::uint32_t sign = p.scale < 0.0F ? 0x80008000U : 0U;
  // All of a thread's reads are under way before the first of them is stored.
  constexpr int kPasses = (kRows + kRowsAtOnce - 1) / kRowsAtOnce;
  HPCATTN_UNROLL
  for (int first = 0; first < kUnits; first += kThreadsPerRow) {
    const int unit = first + thread % kThreadsPerRow;
    if (kUnits % kThreadsPerRow != 0 && unit >= kUnits) continue;
    std::uint32_t pairs[kPasses][4] = {};
    HPCATTN_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = task.row_begin + thread / kThreadsPerRow + pass * kRowsAtOnce;
      if (row >= task.row_end) continue;
      const RowPlace place(task.first_token, task.kv_head, p.group, row);
      load_query_unit<kSpec>(p, place.token * p.q_token + place.head * p.q_head + unit * 8,
                             pairs[pass]);
    }
    HPCATTN_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      HPCATTN_UNROLL
      for (int j = 0; j < 4; ++j) pairs[pass][j] ^= sign;
      const int i = thread / kThreadsPerRow + pass * kRowsAtOnce;
      store_query_unit<kSpec>(pairs[pass], unit, q_smem + i * Config::kQStride);
    }
  }
}

}  // namespace hpcattn
