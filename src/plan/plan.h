// SPDX-License-Identifier: Apache-2.0
// Reading a plan tensor, for the operators.
#pragma once

#include <span>

#include "hpcattn/plan.h"
#include "src/plan/layout.h"

namespace hpcattn::plan {

struct PlanView {
  const Header* header = nullptr;
  std::span<const Task> tasks;
  std::span<const Combine> combines;
};

/// Checks that the tensor holds a whole plan. Throws InvalidArgument.
PlanView view(const Tensor& plan);

/// Checks that it was made for this group and these lengths too.
PlanView view_for(const Tensor& plan, const AttentionGroup& group, const Tensor& cu_seqlens_q,
                  const Tensor& kv_lens);

/// What the header's fields say.
AttentionGroup group_of(const Header& header);

/// A header of nothing but the group. A window is cut to int32: no context is longer.
Header header_of(const AttentionGroup& group);

}  // namespace hpcattn::plan
