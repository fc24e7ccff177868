// SPDX-License-Identifier: Apache-2.0
// Variants of the planner's kernel.
#pragma once

#include "src/plan/balance_input.h"

namespace hpcattn {

struct PlanSpec {
  bool checked = false;  // lengths out of order are reported; without it they are clamped alone
  friend constexpr bool operator==(const PlanSpec&, const PlanSpec&) = default;
};

/// One cta plans a batch of any size: barriers within it cost a tenth of a launch.
inline constexpr int kPlanThreads = plan::kMaxPlanThreads;

}  // namespace hpcattn
