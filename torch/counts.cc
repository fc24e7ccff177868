// SPDX-License-Identifier: Apache-2.0
#include "torch/counts.h"

#include <array>
#include <atomic>
#include <cstdint>

#include "src/common/check.h"

namespace hpcattn::torch_ops {
namespace {

std::array<std::atomic<std::uint64_t>, kNumOperators> counts{};

}  // namespace

std::string_view name(Operator op) {
  switch (op) {
    case Operator::kPagedAttention: return "paged_attention";
    case Operator::kPackedAttention: return "packed_attention";
    case Operator::kMergePartials: return "merge_partials";
    case Operator::kStoreKv: return "store_kv";
    case Operator::kRopeNormStoreKv: return "rope_norm_store_kv";
    case Operator::kMakePlan: return "make_plan";
    case Operator::kPlanWords: return "plan_words";
    case Operator::kPlanSummary: return "plan_summary";
  }
  return "unknown";
}

void count_call(Operator op) {
  counts[static_cast<std::size_t>(op)].fetch_add(1, std::memory_order_relaxed);
}

std::string call_counts() {
  std::string json = "{";
  for (int i = 0; i < kNumOperators; ++i) {
    json += message(i > 0 ? ", \"" : "\"", name(static_cast<Operator>(i)),
                    "\": ", counts[static_cast<std::size_t>(i)].load());
  }
  json += "}";
  return json;
}

void reset_call_counts() {
  for (auto& count : counts) count.store(0);
}

}  // namespace hpcattn::torch_ops
