// SPDX-License-Identifier: Apache-2.0
// Attention on the CPU: the tasks of a plan, by threads. Arguments are checked before (src/ops).
#pragma once

#include "src/common/attention_problem.h"
#include "src/plan/plan.h"

namespace hpcattn::cpu {

void run_attention(const AttentionProblem& problem, const plan::PlanView& plan,
                   const Execution& execution);

/// "cpu/narrow/avx2": the kernel that a task of so many rows takes on this machine.
std::string kernel_name(std::int64_t rows);

}  // namespace hpcattn::cpu
