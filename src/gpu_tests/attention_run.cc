// SPDX-License-Identifier: Apache-2.0
#include "src/gpu_tests/attention_run.h"

#include <algorithm>
#include <array>

namespace hpcattn::testkit {
namespace {

std::string plan_text(PlanChoice plan) {
  return std::string(plan.given ? "plan given" : "plan of the call") + ", fixed_split " +
         std::to_string(plan.fixed_split);
}

std::string judge_packed(GpuLane& lane, AttentionBatch& batch,
                         const reference::AttentionResult& want, PlanChoice plan) {
  const PackedAttentionArgs args = batch.packed();
  batch.reset_outputs();
  const std::string label = to_string(batch.description()) + " packed, " + plan_text(plan) + ":";
  std::string report = packed_on_gpu(lane, args, batch.paged().kv_lens, plan);
  if (report.empty()) {
    report = check_outputs(args.out, args.lse, args.options, want, label,
                           gpu_arithmetic(args.q, args.k, args.cu_seqlens_q, plan.fixed_split));
  }
  return report.empty() ? batch.check_surroundings() : report;
}

}  // namespace

const std::vector<DTypes>& gpu_dtypes() {
  static const std::vector<DTypes> some = [] {
    std::vector<DTypes> result;
    for (const DTypes& dtypes : all_dtypes()) {
      if (dtypes.q != DType::kFloat32) result.push_back(dtypes);
    }
    return result;
  }();
  return some;
}

AttentionCase gpu_random_case(std::uint64_t seed) {
  AttentionCase c = random_case(seed);
  if (c.q_dtype != DType::kFloat32) return c;
  constexpr std::array kKinds = {Scales::kEach, Scales::kOne, Scales::kByRequest};
  const Scales kind = kKinds.at(seed % kKinds.size());
  set_dtypes(c, gpu_dtypes()[seed % gpu_dtypes().size()], kind);
  return c;
}

GuardedTensor plan_memory(const AttentionGroup& group, std::int64_t num_tokens,
                          const Tensor& kv_lens, std::int64_t fixed_split) {
  PlanCapacity capacity;
  capacity.max_requests = kv_lens.size(0);
  capacity.max_tokens = num_tokens;
  capacity.fixed_split = fixed_split;
  capacity.device = {DeviceType::kCuda, 0};
  capacity.max_kv_len = 1;
  for (std::int64_t r = 0; r < kv_lens.size(0); ++r) {
    capacity.max_kv_len =
        std::max<std::int64_t>(capacity.max_kv_len, kv_lens.data_as<std::int32_t>()[r]);
  }
  // A plan on a GPU is aligned to 16 bytes.
  return {DType::kInt32, {plan_words(group, capacity)}, GuardSide::kBefore};
}

std::string paged_on_gpu(GpuLane& lane, PagedAttentionArgs args, PlanChoice plan) {
  GuardedTensor words;
  args.fixed_split = plan.fixed_split;
  if (plan.given) {
    words = plan_memory(group_of(args), args.q.size(0), args.kv_lens, plan.fixed_split);
    args.plan = words;
  }
  return call_on_gpu(lane, args, [&](const PagedAttentionArgs& a, const Execution& execution) {
    if (plan.given) {
      make_plan({group_of(a), a.cu_seqlens_q, a.kv_lens, plan.fixed_split, a.plan}, execution);
    }
    paged_attention(a, execution);
  });
}

std::string packed_on_gpu(GpuLane& lane, PackedAttentionArgs args, const Tensor& kv_lens,
                          PlanChoice plan) {
  GuardedTensor words;
  args.fixed_split = plan.fixed_split;
  if (plan.given) {
    words = plan_memory(group_of(args), args.q.size(0), kv_lens, plan.fixed_split);
    args.plan = words;
  }
  const PlannedPacked both{args, kv_lens};
  return call_on_gpu(lane, both, [&](const PlannedPacked& device, const Execution& execution) {
    const PackedAttentionArgs& a = device.args;
    if (plan.given) {
      make_plan({group_of(a), a.cu_seqlens_q, device.kv_lens, plan.fixed_split, a.plan}, execution);
    }
    packed_attention(a, execution);
  });
}

std::string judge_on_gpu(GpuLane& lane, AttentionBatch& batch, const PagedAttentionArgs& args,
                         const reference::AttentionResult& want, const std::string& label,
                         PlanChoice plan) {
  batch.reset_outputs();
  const std::string whole =
      label + " of " + to_string(batch.description()) + " over pages, " + plan_text(plan) + ":";
  std::string report = paged_on_gpu(lane, args, plan);
  if (report.empty()) {
    report =
        check_outputs(args.out, args.lse, args.options, want, whole,
                      gpu_arithmetic(args.q, args.k_cache, args.cu_seqlens_q, plan.fixed_split));
  }
  if (report.empty()) report = batch.check_surroundings();
  return report;
}

std::string run_on_gpu(GpuLane& lane, const AttentionCase& c) {
  AttentionBatch batch(c);
  const PagedAttentionArgs args = batch.paged();
  const reference::AttentionResult want = reference::attention(args);
  std::string report = judge_on_gpu(lane, batch, args, want, "run");
  if (!report.empty()) return report;
  const PlanChoice balanced{.given = true};
  const PlanChoice fixed{.given = c.seed % 8 == 1, .fixed_split = c.seed % 3 == 0 ? 128 : 64};
  const bool packs = c.hole_share == 0.0;
  switch (c.seed % 4) {
    case 0: report = judge_on_gpu(lane, batch, args, want, "run", balanced); break;
    case 1: report = judge_on_gpu(lane, batch, args, want, "run", fixed); break;
    case 2: report = packs ? judge_packed(lane, batch, want, {}) : ""; break;
    default: report = packs ? judge_packed(lane, batch, want, balanced) : ""; break;
  }
  return report;
}

}  // namespace hpcattn::testkit
