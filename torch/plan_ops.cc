// SPDX-License-Identifier: Apache-2.0
#include "hpcattn/plan.h"

#include "src/common/check.h"
#include "torch/ops.h"

namespace hpcattn::torch_ops {

AttentionGroup group_of(const char* op, std::int64_t num_q_heads, std::int64_t num_kv_heads,
                        std::int64_t head_dim, std::int64_t page_size, ScalarType q_dtype,
                        ScalarType kv_dtype, bool causal, std::optional<std::int64_t> window) {
  return {.num_q_heads = int_of(op, "num_q_heads", num_q_heads),
          .num_kv_heads = int_of(op, "num_kv_heads", num_kv_heads),
          .head_dim = int_of(op, "head_dim", head_dim),
          .page_size = int_of(op, "page_size", page_size),
          .q_dtype = dtype_of(op, "q_dtype", q_dtype),
          .kv_dtype = dtype_of(op, "kv_dtype", kv_dtype),
          .causal = causal,
          .window = window};
}

namespace {

/// Not given: the CPU. "cuda" without an index: the current device, as everywhere in torch.
Device device_of(const char* op, const OptionalDevice& device) {
  using torch::headeronly::DeviceType;
  if (!device || device->type() == DeviceType::CPU) return {};
  check(device->type() == DeviceType::CUDA, op, ": device is of torch's type ",
        static_cast<int>(device->type()), ", expected cpu or cuda.");
  const std::int32_t index =
      device->has_index() ? device->index() : torch::stable::accelerator::getCurrentDeviceIndex();
  return {hpcattn::DeviceType::kCuda, index};
}

}  // namespace

void make_plan(const StableTensor& cu_seqlens_q, const StableTensor& kv_lens,
               const StableTensor& plan, std::int64_t num_q_heads, std::int64_t num_kv_heads,
               std::int64_t head_dim, std::int64_t page_size, ScalarType q_dtype,
               ScalarType kv_dtype, bool causal, std::optional<std::int64_t> window,
               std::int64_t fixed_split) {
  run([&] {
    Arguments args("make_plan");
    const PlanArgs plan_args{.group = group_of("make_plan", num_q_heads, num_kv_heads, head_dim,
                                               page_size, q_dtype, kv_dtype, causal, window),
                             .cu_seqlens_q = args.input("cu_seqlens_q", cu_seqlens_q),
                             .kv_lens = args.input("kv_lens", kv_lens),
                             .fixed_split = fixed_split,
                             .plan = args.output("plan", plan)};
    hpcattn::make_plan(plan_args, args.execution());
  });
}

std::int64_t plan_words(std::int64_t max_requests, std::int64_t max_tokens, std::int64_t max_kv_len,
                        std::int64_t num_q_heads, std::int64_t num_kv_heads, std::int64_t head_dim,
                        std::int64_t page_size, ScalarType q_dtype, ScalarType kv_dtype,
                        bool causal, std::optional<std::int64_t> window, std::int64_t fixed_split,
                        const OptionalDevice& device) {
  return run([&] {
    const Device place = device_of("plan_words", device);
    const AttentionGroup group = group_of("plan_words", num_q_heads, num_kv_heads, head_dim,
                                          page_size, q_dtype, kv_dtype, causal, window);
    return hpcattn::plan_words(group, {.max_requests = max_requests,
                                       .max_tokens = max_tokens,
                                       .max_kv_len = max_kv_len,
                                       .fixed_split = fixed_split,
                                       .num_workers = torch_threads(),
                                       .device = place});
  });
}

std::string plan_summary(const StableTensor& plan) {
  return run([&] {
    Arguments args("plan_summary");
    const PlanSummary summary = summarize(args.input("plan", plan));
    const AttentionGroup& group = summary.group;
    const std::string window = group.window ? std::to_string(*group.window) : "null";
    return message(R"({"group": {"num_q_heads": )", group.num_q_heads, R"(, "num_kv_heads": )",
                   group.num_kv_heads, R"(, "head_dim": )", group.head_dim, R"(, "page_size": )",
                   group.page_size, R"(, "q_dtype": ")", name(group.q_dtype), R"(", "kv_dtype": ")",
                   name(group.kv_dtype), R"(", "causal": )", group.causal ? "true" : "false",
                   R"(, "window": )", window, R"(}, "num_requests": )", summary.num_requests,
                   R"(, "num_tokens": )", summary.num_tokens, R"(, "num_tasks": )",
                   summary.num_tasks, R"(, "num_partials": )", summary.num_partials,
                   R"(, "num_combines": )", summary.num_combines, R"(, "longest_task": )",
                   summary.longest_task, R"(, "total_work": )", summary.total_work, "}");
  });
}

}  // namespace hpcattn::torch_ops
