// SPDX-License-Identifier: Apache-2.0
// The warps that bring q of a task's rows, as the products take it.
#pragma once

#include "kernels/generic/attention/query.h"
#include "kernels/sm90/prefill/ring.h"

namespace hpcattn {

/// q of the task's rows to `q`, in swizzled lines; what lies in rows past its end stays. A negative
/// scale turns the sign of q, so that the largest raw score is the largest score.
template <PrefillSpec kSpec>
inline void store_lines_of_query(const AttentionParams& p, const plan::Task& task, char* q,
                                 int thread) {
  constexpr PrefillLayout kLayout = prefill_layout(kSpec);
  constexpr int kThreads = PrefillShared<kSpec>::kQueryWarps * 32;
  constexpr int kUnits = PrefillLayout::kLineBytes / 16;  // of a line
  constexpr int kRowsAtOnce = kThreads / kUnits;
  const std::uint32_t sign = p.scale < 0.0F ? 0x80008000U : 0U;
  const int unit = thread % kUnits;
  HPCATTN_NO_UNROLL
  for (int i = thread / kUnits; i < task.row_end - task.row_begin; i += kRowsAtOnce) {
    const RowPlace place(task.first_token, task.kv_head, p.group, task.row_begin + i);
    const std::int64_t source = place.token * p.q_token + place.head * p.q_head + unit * 8;
    // All reads of a row are under way before the first is stored.
    std::uint32_t pairs[kLayout.lines][4];
    HPCATTN_UNROLL
    for (int line = 0; line < kLayout.lines; ++line) {
      load_query_unit<kSpec.attention>(p, source + line * (PrefillLayout::kLineBytes / 2),
                                       pairs[line]);
    }
    char* const to = q + i * PrefillLayout::kLineBytes + (unit ^ i % kUnits) * 16;
    HPCATTN_UNROLL
    for (int line = 0; line < kLayout.lines; ++line) {
      const std::uint32_t (&x)[4] = pairs[line];
      *reinterpret_cast<uint4*>(to + line * kLayout.rows * PrefillLayout::kLineBytes) =
          make_uint4(x[0] ^ sign, x[1] ^ sign, x[2] ^ sign, x[3] ^ sign);
    }
  }
}

/// All tasks of this cta; `thread`: of the warps that do it.
template <PrefillSpec kSpec>
inline void load_queries(const AttentionParams& p, const PrefillShared<kSpec>& shared, int thread) {
  const auto records = shared.records();
  const auto queries = shared.queries();
  for (int number = 0;; ++number) {
    records.wait_full(number);
    const plan::Task task = shared.record(number);
    records.release(number, thread % 32);
    if (task.request == kNoRequest) return;
    queries.wait_empty(number);
    store_lines_of_query<kSpec>(p, task, shared.q(number), thread);
    ptx::fence_async_shared();  // the products read what these ordinary stores wrote
    queries.fill(number, thread % 32);
  }
}

}  // namespace hpcattn
