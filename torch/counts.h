// SPDX-License-Identifier: Apache-2.0
// How often each operator was run through torch: proof for tests and tools that a model's attention
// was computed here.
#pragma once

#include <string>
#include <string_view>

namespace hpcattn::torch_ops {

enum class Operator : int {
  kPagedAttention,
  kPackedAttention,
  kMergePartials,
  kStoreKv,
  kRopeNormStoreKv,
  kMakePlan,
  kPlanWords,
  kPlanSummary,
};
inline constexpr int kNumOperators = 8;

/// As in torch.ops.hpcattn: "paged_attention".
std::string_view name(Operator op);

/// One more call that ended without an error. From any thread.
void count_call(Operator op);

/// {"paged_attention": 12, ...} as JSON, every operator in it.
std::string call_counts();

void reset_call_counts();

}  // namespace hpcattn::torch_ops
