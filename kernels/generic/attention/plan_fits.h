// SPDX-License-Identifier: Apache-2.0
// Whether a plan is one of this launch. The host can not read it, so the kernels look.
#pragma once

#include "kernels/generic/attention/load_task.h"

namespace hpcattn {

/// Uniform over the grid. What does not fit is reported where `fault` is given; nothing is to be
/// computed then.
template <typename Params>
inline bool plan_fits(const Params& p, Fault* fault) {
  const auto header = load_record<plan::Header>(p.plan);
  const plan::Header& want = p.group_header;
  // No branches: each would wait for the one before.
  const auto differ = (header.magic ^ plan::kMagic) | (header.version ^ plan::kVersion) |
                      (header.num_q_heads ^ want.num_q_heads) |
                      (header.num_kv_heads ^ want.num_kv_heads) |
                      (header.head_dim ^ want.head_dim) | (header.page_size ^ want.page_size) |
                      (header.q_dtype ^ want.q_dtype) | (header.kv_dtype ^ want.kv_dtype) |
                      (header.causal ^ want.causal) | (header.window ^ want.window) |
                      (header.num_requests ^ want.num_requests);
  const bool group = differ == 0;
  const bool room = header.num_partial_rows <= p.partial_rows;
  if (fault != nullptr && threadIdx.x == 0) {
    if (!group) {
      report_fault(fault, FaultKind::kPlanGroup, header.magic, header.num_requests,
                   want.num_requests, header.head_dim);
    } else if (!room) {
      report_fault(fault, FaultKind::kPlanOverflow, header.num_partial_rows, p.partial_rows);
    }
  }
  return group && room;
}

}  // namespace hpcattn
