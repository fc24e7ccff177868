// SPDX-License-Identifier: Apache-2.0
// The plan of a GPU: one launch fills it from lengths that lie on the device, so it needs no wait,
// may be captured in a graph, and follows the lengths of each replay. docs/plan.md, "On a GPU".
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "hpcattn/plan.h"
#include "kernels/plan/config.h"
#include "src/cuda/kernel.h"
#include "src/plan/device_bound.h"
#include "src/plan/plan.h"

namespace hpcattn::cuda {

/// The spec that this process runs.
PlanSpec plan_spec();
KernelVariant variant_of(const PlanSpec& spec);
/// Each variant that there is.
std::vector<KernelVariant> all_plan_variants();

/// Workers of a plan of this device: the ctas that an attention kernel is launched with.
int plan_workers(int device);

/// Who computes calls of many rows on a GPU of so many multiprocessors.
plan::PrefillCrew prefill_crew(const AttentionGroup& group, std::int64_t fixed_split,
                               std::string_view arch, int num_sms);

plan::PlanShape plan_shape(const AttentionGroup& group, std::int64_t fixed_split);

/// Words of a plan's tensor and rows of partial results, at most. `capacity.device` is a GPU.
plan::DeviceBound plan_bound(const AttentionGroup& group, const PlanCapacity& capacity);

enum class KvLens {
  kEach,        // [num_requests], KV tokens of each
  kCumulative,  // [num_requests + 1], cu_seqlens_k of packed K and V
};

/// Launches the planner on execution.stream. `args` is as hpcattn::make_plan checks it, on one GPU.
/// What the tensor can not hold is found on the device: kPlanOverflow, and a plan without tasks.
/// Throws InvalidArgument where the tensor is too small or not aligned.
void make_plan(const PlanArgs& args, KvLens kv_lens, const Execution& execution);

/// A plan read back from its GPU, for people and tests. Waits for the default stream alone: wait
/// for the one that make_plan ran on first.
class PlanCopy {
 public:
  /// Throws InvalidArgument where the tensor holds no plan of that device.
  explicit PlanCopy(const Tensor& plan);

  /// Valid as long as this copy.
  plan::PlanView view() const { return view_; }

 private:
  HostCopy copy_;
  std::vector<plan::Combine> combines_;  // in order
  plan::PlanView view_;
};

}  // namespace hpcattn::cuda
