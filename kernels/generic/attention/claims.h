// SPDX-License-Identifier: Apache-2.0
// Which tasks of a plan a cta computes: the one of its own number, then whichever is next. So a cta
// whose multiprocessor is slower, or whose tasks are longer than the planner thought, takes fewer.
#pragma once

#include "kernels/generic/attention/load_task.h"

namespace hpcattn {

inline constexpr int kNoTask = -1;

inline const plan::Header& plan_header(const AttentionParams& p) {
  return *reinterpret_cast<const plan::Header*>(p.plan);
}

/// Uniform over the cta.
inline int first_task(const AttentionParams& p) {
  const int cta = static_cast<int>(blockIdx.x);
  return cta < plan_header(p).num_tasks ? cta : kNoTask;
}

/// How many have claimed before, and the sum of their calls' numbers.
using Ticket = unsigned long long;

/// By one thread of the cta, once for each task of its, the first too. Nothing waits for the ticket
/// until next_task() asks for it.
inline Ticket take_ticket(const AttentionParams& p) {
  const plan::Header& header = plan_header(p);
  if (header.num_tasks <= static_cast<int>(gridDim.x)) return 0;
  auto* const claimed =
      reinterpret_cast<unsigned long long*>(const_cast<std::uint32_t*>(header.claimed));
  return atomicAdd(claimed, (static_cast<unsigned long long>(p.call_id) << 32) + 1);
}

/// The task that a ticket is for, or kNoTask: then the cta is done. By the thread that took it. The
/// last of all tickets, one for each task, makes the plan ready for the next call.
inline int next_task(const AttentionParams& p, Ticket ticket) {
  const plan::Header& header = plan_header(p);
  const int num_tasks = header.num_tasks;
  const int num_ctas = static_cast<int>(gridDim.x);
  if (num_tasks <= num_ctas) return kNoTask;
  const auto before = static_cast<std::uint32_t>(ticket);
  const auto calls = static_cast<std::uint32_t>(ticket >> 32);
  if (calls != p.call_id * before) {
    report_fault(p.fault, FaultKind::kPlanShared, -1, before, calls, p.call_id * before);
  }
  if (static_cast<int>(before) == num_tasks - 1) {
    auto* const claimed = const_cast<std::uint32_t*>(header.claimed);
    *reinterpret_cast<volatile unsigned long long*>(claimed) = 0;
  }
  const int task = num_ctas + static_cast<int>(before);
  return task < num_tasks ? task : kNoTask;
}

}  // namespace hpcattn
