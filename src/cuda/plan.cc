// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/plan.h"

#include <algorithm>

#include "kernels/plan/params.h"
#include "src/common/check.h"
#include "src/common/counter.h"
#include "src/cuda/attention.h"
#include "src/cuda/device_checks.h"
#include "src/cuda/kernel_table.h"
#include "src/ops/check_tensor.h"

namespace hpcattn::cuda {
namespace {

constexpr const char* kCopy = "plan";

HostCopy copy_of(const Tensor& plan) {
  ops::check_shape(kCopy, "plan", plan, {ops::kAnySize});
  ops::check_dtype(kCopy, "plan", plan, {DType::kInt32});
  check(plan.size(0) >= plan::kHeaderWords, kCopy, ": the tensor has ", plan.size(0),
        " words and holds no plan. Fill it by make_plan.");
  return {plan, {}};
}

}  // namespace

PlanSpec plan_spec() { return {.checked = device_checks()}; }

KernelVariant variant_of(const PlanSpec& spec) {
  const std::string text = message("PlanSpec{.checked = ", spec.checked ? "true" : "false", "}");
  KernelVariant variant;
  variant.name = message("make_plan<", text, ">");
  variant.source = message(
      "#include \"kernels/plan/kernel.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__(",
      kPlanThreads,
      ") hpcattn_kernel(\n"
      "    const __grid_constant__ hpcattn::PlanParams params) {\n"
      "  hpcattn::make_plan<hpcattn::",
      text, ">(params);\n}\n");
  variant.threads = kPlanThreads;
  return variant;
}

std::vector<KernelVariant> all_plan_variants() {
  return {variant_of(PlanSpec{.checked = false}), variant_of(PlanSpec{.checked = true})};
}

int plan_workers(int device) { return device_info(device).num_sms * plan::kCtasPerSm; }

plan::PrefillCrew prefill_crew(const AttentionGroup& group, std::int64_t fixed_split,
                               std::string_view arch, int num_sms) {
  const int head_dim = std::min(group.head_dim, 4096);
  plan::PrefillCrew crew{
      .num_workers = num_sms,
      .costs = plan::prefill_costs(head_dim, static_cast<int>(size_bytes(group.kv_dtype)))};
  if (group.q_dtype == DType::kFloat32) return crew;  // no GPU kernel's
  const PrefillSpec spec = prefill_spec(group, {}, attention_device(arch).most_shared);
  for (const int rows : {kMostDecodeRows, 0}) {
    if (prefill_is_chosen(spec, rows + 1, fixed_split, arch)) crew.more_rows_than = rows;
  }
  return crew;
}

plan::PlanShape plan_shape(const AttentionGroup& group, std::int64_t fixed_split) {
  // No kernel takes a longer head; the costs of one would pass int32.
  const int head_dim = std::min(group.head_dim, 4096);
  const std::int64_t most = plan::kMaxInt32;
  return {.mask = {.causal = group.causal, .window = std::min(group.window.value_or(0), most)},
          .rows = plan::tile_rows(head_dim),
          .costs = plan::tile_costs(head_dim, static_cast<int>(size_bytes(group.kv_dtype))),
          .num_kv_heads = group.num_kv_heads,
          .group = group.num_q_heads / group.num_kv_heads,
          .max_tokens = plan::kMaxInt32 / (group.num_q_heads / group.num_kv_heads),
          .fixed_split = plan::int32_split(fixed_split)};
}

plan::DeviceBound plan_bound(const AttentionGroup& group, const PlanCapacity& capacity) {
  return plan::device_bound(plan_shape(group, capacity.fixed_split),
                            {.max_requests = capacity.max_requests,
                             .max_tokens = capacity.max_tokens,
                             .max_kv_len = capacity.max_kv_len,
                             .num_workers = plan_workers(capacity.device.index)});
}

void make_plan(const PlanArgs& args, KvLens kv_lens, const Execution& execution) {
  const int device = args.plan.device().index;
  check_faults(device);
  check(args.cu_seqlens_q.size(0) <= plan::kMaxInt32, "make_plan: ", args.cu_seqlens_q.size(0),
        " entries of cu_seqlens_q, expected less than 2^31. Cut the batch.");
  PlanParams params;
  plan::BalanceInput& in = params.input;
  in.lengths = {.cu_seqlens_q = args.cu_seqlens_q.data_as<const std::int32_t>(),
                .cu_seqlens_q_stride = args.cu_seqlens_q.stride(0),
                .kv_lens = args.kv_lens.data_as<const std::int32_t>(),
                .kv_lens_stride = args.kv_lens.stride(0),
                .num_requests = static_cast<std::int32_t>(args.cu_seqlens_q.size(0) - 1),
                .kv_cumulative = kv_lens == KvLens::kCumulative};
  in.shape = plan_shape(args.group, args.fixed_split);
  in.layout = {.num_requests = in.lengths.num_requests, .words = args.plan.size(0)};
  in.num_workers = plan_workers(device);
  const DeviceInfo& info = device_info(device);
  in.prefill = prefill_crew(args.group, args.fixed_split, arch_of(info), info.num_sms);
  in.plan = args.plan.data_as<std::int32_t>();
  in.header = plan::header_of(args.group, args.fixed_split);
  params.faults = static_cast<Fault*>(fault_mailbox(device));
  check(in.layout.holds(0, 0), "make_plan: plan has ", args.plan.size(0), " words, a plan of ",
        in.lengths.num_requests, " requests has ", in.layout.task(0),
        " without its tasks. Size it by plan_words for this device.");
  check(reinterpret_cast<std::uintptr_t>(in.plan) % 16 == 0,
        "make_plan: plan lies at an address that is no multiple of 16 bytes, expected one that is. "
        "Give a tensor of its own, or a slice at a multiple of 4 words.");

  static KernelTable<PlanSpec> table;
  const Kernel& kernel =
      table.get(device, plan_spec(), [](const PlanSpec& spec) { return variant_of(spec); });
  const DeviceGuard guard(device);
  launch(kernel, {1, 1, 1}, execution, params,
         /*programmatic=*/info.major >= 9);
  static Counter launches("cuda/plan");
  launches.add();
}

PlanCopy::PlanCopy(const Tensor& plan) : copy_(copy_of(plan)) {
  const auto* words = copy_.tensor().data_as<const std::int32_t>();
  const auto* header = reinterpret_cast<const plan::Header*>(words);
  check(header->magic == plan::kMagic && header->version == plan::kVersion, kCopy,
        ": the tensor holds no plan of this version. Fill it by make_plan.");
  const plan::DeviceLayout layout{.num_requests = header->num_requests, .words = plan.size(0)};
  check(header->num_requests >= 0 && header->num_tasks >= 0 && header->num_combines >= 0 &&
            layout.holds(header->num_tasks, header->num_combines),
        kCopy, ": the plan was changed since make_plan filled it. Make it anew.");
  view_.header = header;
  view_.tasks = {reinterpret_cast<const plan::Task*>(words + layout.task(0)),
                 static_cast<std::size_t>(header->num_tasks)};
  for (std::int64_t i = 0; i < header->num_combines; ++i) {
    combines_.push_back(*reinterpret_cast<const plan::Combine*>(words + layout.combine(i)));
  }
  view_.combines = combines_;
}

}  // namespace hpcattn::cuda
