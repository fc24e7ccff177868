// SPDX-License-Identifier: Apache-2.0
// Entry of the planner: src/plan/balance.h, run by one cta.
#pragma once

#include "kernels/plan/cta.h"
#include "kernels/plan/params.h"
#include "kernels/ptx/dependent.h"
#include "src/plan/balance.h"

namespace hpcattn {

template <PlanSpec kSpec>
__device__ void make_plan(const PlanParams& params) {
  ptx::wait_for_kernel_before();
  ptx::let_next_kernel_begin();
  __shared__ PlanScanMemory scan_smem;
  __shared__ plan::BalanceMemory memory;
  PlanCta<kSpec> cta(scan_smem, params.faults);
  plan::Balancer<PlanCta<kSpec>>(cta, params.input, memory).run();
}

}  // namespace hpcattn
