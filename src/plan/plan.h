// SPDX-License-Identifier: Apache-2.0
// Reading a plan tensor, for the operators.
#pragma once

#include <cstdint>
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

/// Checks that it was made for this group, these lengths and this fixed_split (-1: any) too.
PlanView view_for(const Tensor& plan, const AttentionGroup& group, const Tensor& cu_seqlens_q,
                  const Tensor& kv_lens, std::int64_t fixed_split = -1);

/// What the header's fields say.
AttentionGroup group_of(const Header& header);

/// A header of nothing but the group and the split. Both window and split are cut to int32: no
/// context is longer.
Header header_of(const AttentionGroup& group, std::int64_t fixed_split = 0);

/// A fixed split as a multiple of kTileKv within int32.
constexpr std::int32_t int32_split(std::int64_t fixed_split) {
  constexpr std::int64_t kLongest = INT32_MAX / kTileKv * kTileKv;
  return static_cast<std::int32_t>(fixed_split < kLongest ? fixed_split : kLongest);
}

}  // namespace hpcattn::plan
