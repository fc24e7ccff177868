// SPDX-License-Identifier: Apache-2.0
// The tasks of a cta, claimed by one warp for the others.
#pragma once

#include "kernels/generic/attention/claims.h"
#include "kernels/generic/attention/load_task.h"

namespace hpcattn {

/// The task of the cta's number, if the tensor has that place: read before it is known whether the
/// plan has so many, so that it is under way with the header.
inline plan::Task load_first_task(const AttentionParams& p) {
  const auto cta = static_cast<int>(blockIdx.x);
  plan::Task task{};
  if (p.plan != nullptr && p.layout.holds(std::int64_t{cta} + 1, 0)) task = load_task(p, cta);
  return task;
}

/// Whether q of that task may be looked at before it is known that the plan is this batch's, which
/// the warp that claims tasks finds out: there is a plan, the task is there, and within q.
inline bool may_look_ahead(const AttentionParams& p, const plan::Task& first) {
  return p.plan != nullptr && first_task(p) != kNoTask &&
         first.first_token + first.num_tokens <= p.num_tokens;
}

/// Which tasks of a plan are a cta's (claims.h).
struct PlannedTasks {
  const AttentionParams& p;
  int first() const { return first_task(p); }
  Ticket take() const { return take_ticket(p); }
  int next(Ticket ticket) const { return next_task(p, ticket); }
};

/// Calls body(task, before_last) for each task of this cta, by all lanes of one warp; `task_at(i)`
/// is the i-th of all. Before the copies of a task's last tile comes before_last(), which claims
/// the next: so that the claim is there when they are under way, and no earlier than that.
template <typename Tasks, typename TaskAt, typename Body>
inline void for_each_task(const Tasks& tasks, int lane, const TaskAt& task_at, const Body& body) {
  int index = tasks.first();
  while (index != kNoTask) {
    Ticket ticket = 0;
    bool taken = false;
    const auto take = [&] {
      if (lane == 0) ticket = tasks.take();
      taken = true;
    };
    const plan::Task task = task_at(index);
    body(task, take);
    if (!taken) take();  // the task has no tile
    index = lane == 0 ? tasks.next(ticket) : 0;
    index = __shfl_sync(0xffffffffU, index, 0);
  }
}

}  // namespace hpcattn
