// SPDX-License-Identifier: Apache-2.0
// How a kernel tells the host that what it was given contradicts itself: the first report wins, and
// the next call on that device throws it. The mailbox is host memory that the device can write to.
#pragma once

#include <cstdint>

namespace hpcattn {

enum class FaultKind : std::int32_t {
  kNone = 0,
  kPlanGroup,     // plan's magic and requests, call's requests, plan's head dim: of another group
  kPlanBatch,     // request, kv_len of the plan, kv_len of the call: a plan of other lengths
  kPlanOverflow,  // tasks, combines, words of the tensor, rows; or rows of partials, room for them
  kPageId,        // request, page of its table, id, pages of the pool
  kPlanShared,    // request, splits, sum of calls found, expected: two calls used a plan at once
  kLength,        // which (0 cu_seqlens_q, 1 kv_lens, 2 slot, 3 position), index, value, limit
};

struct Fault {
  std::int32_t kind = 0;  // FaultKind; written last
  std::int32_t claimed = 0;
  std::int64_t values[4] = {};
};

#ifdef __CUDACC_RTC__
/// Any thread; the call returns, and the caller must go on without touching what it found wrong.
inline __device__ void report_fault(Fault* box, FaultKind kind, std::int64_t a, std::int64_t b,
                                    std::int64_t c = 0, std::int64_t d = 0) {
  if (atomicCAS_system(&box->claimed, 0, 1) != 0) return;
  box->values[0] = a;
  box->values[1] = b;
  box->values[2] = c;
  box->values[3] = d;
  __threadfence_system();
  *static_cast<volatile std::int32_t*>(&box->kind) = static_cast<std::int32_t>(kind);
}
#endif

}  // namespace hpcattn
