// SPDX-License-Identifier: Apache-2.0
// The warps that bring q of a task's rows, as the products take it. Without a plan the first of
// them finds the tasks.
#pragma once

#include "kernels/generic/attention/query.h"
#include "kernels/ptx/copy.h"
#include "kernels/sm90/prefill/tasks.h"
#include "kernels/sm90/tasks.h"

namespace hpcattn {

/// Codes of q's numbers.
template <bool kFp8>
struct QueryCode {
  using Type = std::uint16_t;
};
template <>
struct QueryCode<true> {
  using Type = std::uint8_t;
};

/// 16 bytes of q.
template <typename Code>
inline void load_query_bytes(const Code* source, bool vectors, std::uint32_t (&x)[4]) {
  constexpr int kPerWord = 4 / sizeof(Code);
  if (vectors) {
    const uint4 all = *reinterpret_cast<const uint4*>(source);
    x[0] = all.x;
    x[1] = all.y;
    x[2] = all.z;
    x[3] = all.w;
    return;
  }
  HPCATTN_UNROLL
  for (int i = 0; i < 4; ++i) {
    x[i] = 0;
    HPCATTN_UNROLL
    for (int j = 0; j < kPerWord; ++j) {
      x[i] |= std::uint32_t{source[i * kPerWord + j]} << (32 / kPerWord * j);
    }
  }
}

/// q of the task's rows to `q`, in swizzled lines; what lies in rows past its end stays. A negative
/// scale turns the sign of q, so that the largest raw score is the largest score.
template <PrefillSpec kSpec>
inline void store_lines_of_query(const AttentionParams& p, const plan::Task& task, char* q,
                                 int thread) {
  constexpr PrefillLayout kLayout = prefill_layout(kSpec);
  constexpr int kThreads = PrefillShared<kSpec>::kQueryWarps * 32;
  constexpr int kLineBytes = kLayout.line_bytes;
  constexpr int kUnits = kLineBytes / 16;  // of a line
  constexpr int kRowsAtOnce = kThreads / kUnits;
  constexpr bool kFp8 = is_fp8(kSpec.attention.q_dtype);
  using Code = typename QueryCode<kFp8>::Type;
  constexpr int kLineElements = kLineBytes / static_cast<int>(sizeof(Code));
  const int unit = thread % kUnits;
  // The addresses of some rows are computed at once.
  constexpr int kAtOnce = 4;
  const int num_rows = task.row_end - task.row_begin;
  const auto for_each_row = [&](const auto& body) {
    HPCATTN_NO_UNROLL
    for (int first = thread / kUnits; first < num_rows; first += kAtOnce * kRowsAtOnce) {
      HPCATTN_UNROLL
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = first + j * kRowsAtOnce;
        const RowPlace place(task.first_token, task.kv_head, p.group, task.row_begin + i);
        const Code* const source = static_cast<const Code*>(p.q) + place.token * p.q_token +
                                   place.head * p.q_head + unit * (kLineElements / kUnits);
        if (i < num_rows) {
          body(i * kLineBytes + swizzled_unit(kLineBytes, i, unit) * 16, source);
        }
      }
    }
  };
  if (p.q_vectors && p.scale >= 0.0F) {
    // Copies of all rows are under way at once, and take no registers.
    const std::uint32_t q_shared = ptx::shared_address(q);
    for_each_row([&](int to, const Code* source) {
      HPCATTN_UNROLL
      for (int line = 0; line < kLayout.lines; ++line) {
        ptx::cp_async_16(q_shared + to + line * kLayout.rows * kLineBytes,
                         source + line * kLineElements, true);
      }
    });
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    return;
  }
  const std::uint32_t sign = p.scale < 0.0F ? (kFp8 ? 0x80808080U : 0x80008000U) : 0U;
  for_each_row([&](int to, const Code* source) {
    HPCATTN_NO_UNROLL
    for (int line = 0; line < kLayout.lines; ++line) {
      std::uint32_t x[4];
      load_query_bytes(source + line * kLineElements, p.q_vectors, x);
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
  constexpr int kThreads = PrefillShared<kSpec>::kQueryWarps * 32;
  const plan::Task first = load_first_task(p);
  if (may_look_ahead(p, first)) fetch_query<kSpec.attention, kThreads>(p, first, thread);
  const bool sends = p.plan == nullptr && thread < 32;
  if (sends) send_whole_tile<kSpec>(p, shared, 0, thread);
  for (int number = 0;; ++number) {
    records.wait_full(number);
    const plan::Task task = shared.record(number);
    records.release(number);
    if (task.request == kNoRequest) return;
    // So early that it is there when K and V of this task are on their way.
    if (sends) send_whole_tile<kSpec>(p, shared, number + 1, thread);
    if (number > 0 || p.plan == nullptr) fetch_query<kSpec.attention, kThreads>(p, task, thread);
    queries.wait_empty(number);
    store_lines_of_query<kSpec>(p, task, shared.q(number), thread);
    ptx::fence_async_shared();  // the products read what these threads wrote or copied
    queries.fill(number);
  }
}

}  // namespace hpcattn
