// SPDX-License-Identifier: Apache-2.0
// Attention over a test batch on the GPU, judged as on the CPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hpcattn/plan.h"
#include "src/cpu/reference/attention.h"
#include "src/testing/attention_case_list.h"
#include "src/testing/attention_check.h"
#include "src/testing/device_call.h"

namespace hpcattn::testkit {

/// all_dtypes() without those of a float32 q, which the GPU refuses.
const std::vector<DTypes>& gpu_dtypes();

/// random_case(seed), with dtypes that the GPU has.
AttentionCase gpu_random_case(std::uint64_t seed);

/// How a call comes by its plan.
struct PlanChoice {
  bool given = false;  // else it is made in the call
  std::int64_t fixed_split = 0;
};

/// Host memory for a plan of exactly this batch on the GPU.
GuardedTensor plan_memory(const AttentionGroup& group, std::int64_t num_tokens,
                          const Tensor& kv_lens, std::int64_t fixed_split = 0);

/// Runs `args`, whose tensors lie on the host, on the GPU; outputs come back into them. "" when
/// nothing around them was written.
std::string paged_on_gpu(GpuLane& lane, PagedAttentionArgs args, PlanChoice plan = {});
std::string packed_on_gpu(GpuLane& lane, PackedAttentionArgs args, const Tensor& kv_lens,
                          PlanChoice plan = {});

/// Judges `args` (of the batch, maybe changed) against the reference.
std::string judge_on_gpu(GpuLane& lane, AttentionBatch& batch, const PagedAttentionArgs& args,
                         const reference::AttentionResult& want, const std::string& label,
                         PlanChoice plan = {});

/// A case over pages with the plan made in the call, and then once more: over pages with a plan
/// that is given, with fixed splits, or packed with either, as its seed says.
std::string run_on_gpu(GpuLane& lane, const AttentionCase& c);

}  // namespace hpcattn::testkit
