// SPDX-License-Identifier: Apache-2.0
// What a launch of the planner passes.
#pragma once

#include "kernels/tile/fault.h"
#include "src/plan/balance_input.h"

namespace hpcattn {

struct PlanParams {
  plan::BalanceInput input;  // lengths, shape of the batch, the plan's tensor
  Fault* faults = nullptr;   // mailbox
};

}  // namespace hpcattn
