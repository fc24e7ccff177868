// SPDX-License-Identifier: Apache-2.0
// The plan that a GPU would be given, made on the host by the same phases: for people who want to
// see how a batch is dealt to a machine that they need not have.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "hpcattn/plan.h"
#include "src/plan/layout.h"

namespace hpcattn::cuda {

struct PlanPreview {
  plan::Header header;
  std::vector<plan::Task> tasks;        // in the order that ctas claim them
  std::vector<std::int64_t> costs;      // of each task, in the planner's own unit
  std::vector<plan::Combine> combines;  // in order
  std::int64_t narrow_tiles = 0;        // of rows, before any cut
  std::int64_t wide_tiles = 0;
  std::int64_t num_workers = 0;
  std::int64_t words = 0;  // of a tensor sized for this batch
};

/// Of a GPU of architecture `arch` ("sm_90a") with `num_sms` multiprocessors. Throws
/// InvalidArgument for lengths that are none, and for a plan that no tensor holds.
PlanPreview preview_plan(const AttentionGroup& group, std::span<const std::int32_t> cu_seqlens_q,
                         std::span<const std::int32_t> kv_lens, std::int64_t fixed_split,
                         std::string_view arch, std::int64_t num_sms);

}  // namespace hpcattn::cuda
