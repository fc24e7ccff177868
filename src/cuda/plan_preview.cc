// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/plan_preview.h"

#include <algorithm>
#include <memory>

#include "src/common/check.h"
#include "src/cuda/plan.h"
#include "src/plan/balance.h"
#include "src/plan/serial_cta.h"

namespace hpcattn::cuda {
namespace {

constexpr const char* kOp = "plan_preview";

/// What the kernel does.
void fill(const plan::BalanceInput& in) {
  const auto memory = std::make_unique<plan::BalanceMemory>();
  plan::SerialCta cta(plan::kMaxPlanThreads);
  plan::Balancer<plan::SerialCta>(cta, in, *memory).run();
  const auto& values = cta.fault.values;
  const auto kind = static_cast<FaultKind>(cta.fault.kind);
  check(kind != FaultKind::kLength, kOp, ": ", values[0] == 0 ? "cu_seqlens_q[" : "kv_lens[",
        values[1], "] is ", values[2],
        ", expected lengths that start at 0 and do not fall, within 2^31.");
  check(kind == FaultKind::kNone, kOp, ": ", values[0],
        " tasks are more than a plan holds. Cut the batch, or take a longer fixed_split.");
}

std::int64_t cost_of(const plan::PlanShape& shape, const plan::TileCosts& costs,
                     const plan::Task& task) {
  const bool wide = std::int64_t{task.num_tokens} * shape.group > shape.rows.narrow;
  return plan::RowTile{.kv_begin = task.kv_begin, .kv_end = task.kv_end, .wide = wide}.cost(costs);
}

/// Adds up the tiles of all heads before any cut.
void count_tiles(const plan::PlanShape& shape, std::span<const std::int32_t> cu_seqlens_q,
                 PlanPreview& preview) {
  for (std::size_t i = 0; i + 1 < cu_seqlens_q.size(); ++i) {
    const std::int64_t rows = std::int64_t{cu_seqlens_q[i + 1] - cu_seqlens_q[i]} * shape.group;
    if (rows == 0) continue;
    if (rows <= shape.rows.narrow) {
      preview.narrow_tiles += shape.num_kv_heads;
    } else {
      preview.wide_tiles +=
          plan::ceil_div(rows, std::int64_t{shape.rows.wide}) * shape.num_kv_heads;
    }
  }
}

}  // namespace

PlanPreview preview_plan(const AttentionGroup& group, std::span<const std::int32_t> cu_seqlens_q,
                         std::span<const std::int32_t> kv_lens, std::int64_t fixed_split,
                         std::string_view arch, std::int64_t num_sms) {
  check(cu_seqlens_q.size() == kv_lens.size() + 1, kOp, ": cu_seqlens_q has ", cu_seqlens_q.size(),
        " entries and kv_lens ", kv_lens.size(), ", expected one more than that.");
  constexpr std::int64_t kMostSms = 1024;
  check(num_sms >= 1 && num_sms <= kMostSms, kOp, ": ", num_sms, " multiprocessors, expected 1 to ",
        kMostSms, ".");
  const std::int64_t num_tokens = std::max(cu_seqlens_q.back(), 0);
  std::int64_t longest = 1;
  for (const std::int32_t kv_len : kv_lens) longest = std::max<std::int64_t>(longest, kv_len);
  // Checks the group and the split too; how large the host's own plan would be is of no interest.
  (void)hpcattn::plan_words(group, {.max_requests = std::int64_t(kv_lens.size()),
                                    .max_tokens = num_tokens,
                                    .max_kv_len = longest,
                                    .fixed_split = fixed_split,
                                    .num_workers = 1});

  PlanPreview preview;
  plan::BalanceInput in;
  in.shape = plan_shape(group, fixed_split);
  in.num_workers = static_cast<std::int32_t>(num_sms * plan::kCtasPerSm);
  in.prefill = prefill_crew(group, fixed_split, arch, static_cast<int>(num_sms));
  const plan::DeviceBound bound =
      plan::device_bound(in.shape, {.max_requests = std::int64_t(kv_lens.size()),
                                    .max_tokens = num_tokens,
                                    .max_kv_len = longest,
                                    .num_workers = in.num_workers});
  check(bound.tasks <= plan::kMaxDeviceTasks, kOp, ": up to ", bound.tasks,
        " tasks are more than a plan holds. Cut the batch, or take a longer fixed_split.");
  preview.words = bound.words;
  std::vector<std::int32_t> words(static_cast<std::size_t>(bound.words));
  in.plan = words.data();
  in.lengths = {.cu_seqlens_q = cu_seqlens_q.data(),
                .kv_lens = kv_lens.data(),
                .num_requests = static_cast<std::int32_t>(kv_lens.size())};
  in.layout = {.num_requests = in.lengths.num_requests, .words = bound.words};
  const bool is_prefill = in.is_prefill(num_tokens);
  preview.num_workers = is_prefill ? in.prefill.num_workers : in.num_workers;
  in.header = plan::header_of(group, fixed_split);
  fill(in);

  preview.header = *reinterpret_cast<const plan::Header*>(in.plan);
  const auto* tasks = reinterpret_cast<const plan::Task*>(in.plan + in.layout.task(0));
  preview.tasks.assign(tasks, tasks + preview.header.num_tasks);
  const plan::TileCosts& costs = is_prefill ? in.prefill.costs : in.shape.costs;
  for (const plan::Task& task : preview.tasks) {
    preview.costs.push_back(cost_of(in.shape, costs, task));
  }
  for (std::int64_t i = 0; i < preview.header.num_combines; ++i) {
    preview.combines.push_back(
        *reinterpret_cast<const plan::Combine*>(in.plan + in.layout.combine(i)));
  }
  count_tiles(in.shape, cu_seqlens_q, preview);
  return preview;
}

}  // namespace hpcattn::cuda
