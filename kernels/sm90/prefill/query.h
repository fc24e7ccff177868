// SPDX-License-Identifier: Apache-2.0
// The warps that bring q of a task's rows, as the products take it.
#pragma once

#include "kernels/generic/attention/query.h"
#include "kernels/ptx/copy.h"
#include "kernels/sm90/prefill/ring.h"

namespace hpcattn {

/// q of the task's rows to `q`, in swizzled lines; what lies in rows past its end stays. A negative
/// scale turns the sign of q, so that the largest raw score is the largest score.
template <PrefillSpec kSpec>
inline void store_lines_of_query(const AttentionParams& p, const plan::Task& task, char* q,
                                 int thread) {
  constexpr PrefillLayout kLayout = prefill_layout(kSpec);
  constexpr int kThreads = PrefillShared<kSpec>::kQueryWarps * 32;
  constexpr int kLineBytes = PrefillLayout::kLineBytes;
  constexpr int kUnits = kLineBytes / 16;  // of a line
  constexpr int kRowsAtOnce = kThreads / kUnits;
  const int unit = thread % kUnits;
  const auto for_each_row = [&](const auto& body) {
    HPCATTN_NO_UNROLL
    for (int i = thread / kUnits; i < task.row_end - task.row_begin; i += kRowsAtOnce) {
      const RowPlace place(task.first_token, task.kv_head, p.group, task.row_begin + i);
      body(i * kLineBytes + (unit ^ i % kUnits) * 16,
           place.token * p.q_token + place.head * p.q_head + unit * 8);
    }
  };
  if (p.q_vectors && p.scale >= 0.0F) {
    // Copies of all rows are under way at once, and take no registers.
    const std::uint32_t q_shared = ptx::shared_address(q);
    for_each_row([&](int to, std::int64_t from) {
      const auto* const source = static_cast<const std::uint16_t*>(p.q) + from;
      HPCATTN_UNROLL
      for (int line = 0; line < kLayout.lines; ++line) {
        ptx::cp_async_16(q_shared + to + line * kLayout.rows * kLineBytes,
                         source + line * (kLineBytes / 2), true);
      }
    });
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    return;
  }
  const std::uint32_t sign = p.scale < 0.0F ? 0x80008000U : 0U;
  for_each_row([&](int to, std::int64_t from) {
    HPCATTN_NO_UNROLL
    for (int line = 0; line < kLayout.lines; ++line) {
      std::uint32_t x[4];
      load_query_unit<kSpec.attention>(p, from + line * (kLineBytes / 2), x);
      *reinterpret_cast<uint4*>(q + to + line * kLayout.rows * kLineBytes) =
          make_uint4(x[0] ^ sign, x[1] ^ sign, x[2] ^ sign, x[3] ^ sign);
    }
  });
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
    ptx::fence_async_shared();  // the products read what these threads wrote or copied
    queries.fill(number, thread % 32);
  }
}

}  // namespace hpcattn
