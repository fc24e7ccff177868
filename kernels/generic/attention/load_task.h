// SPDX-License-Identifier: Apache-2.0
// Tasks of a plan, on the device.
#pragma once

#include <cstdint>

#include "kernels/generic/attention/params.h"
#include "kernels/ptx/memory.h"
#include "kernels/tile/unroll.h"

namespace hpcattn {

/// A record of a plan, all of it under way at once; `words` is a multiple of 16 bytes.
template <typename Record>
inline Record load_record(const std::int32_t* words) {
  static_assert(sizeof(Record) % sizeof(int4) == 0);
  constexpr int kParts = sizeof(Record) / sizeof(int4);
  union {
    int4 parts[kParts];
    Record record;
  } u{};
  HPCATTN_UNROLL
  for (int i = 0; i < kParts; ++i) u.parts[i] = ptx::load_anew(words + 4 * i);
  return u.record;
}

/// Read anew at each call: between the two ends of a task its fields would take registers that the
/// mainloop has no room for.
inline plan::Task load_task(const AttentionParams& p, int index) {
  return load_record<plan::Task>(p.plan + p.layout.task(index));
}

/// The plan was made of the lengths that the call has; else a thread that `reports` does so.
inline bool task_fits(const AttentionParams& p, const plan::Task& task, bool reports) {
  if (p.kv_lens == nullptr) return true;
  const int kv_len = p.kv_lens[task.request * p.kv_lens_stride];
  if (kv_len == task.kv_len) return true;
  if (reports) {
    report_fault(p.fault, FaultKind::kPlanBatch, task.request, task.kv_len, kv_len);
  }
  return false;
}

}  // namespace hpcattn
