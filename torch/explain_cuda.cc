// SPDX-License-Identifier: Apache-2.0
// What the command line asks of GPUs that need not be there: the variants that a call takes, where
// their machine code lies, and the plan of a batch. Read by python/hpcattn/_introspect.py.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "src/common/check.h"
#include "src/cuda/attention.h"
#include "src/cuda/cubin_store.h"
#include "src/cuda/plan.h"
#include "src/cuda/plan_preview.h"
#include "torch/json.h"
#include "torch/ops.h"

namespace hpcattn::torch_ops {
namespace {

std::string_view text_of(cuda::CubinPlace place) {
  switch (place) {
    case cuda::CubinPlace::kShipped: return "shipped";
    case cuda::CubinPlace::kCached: return "cached";
    case cuda::CubinPlace::kNowhere: return "not compiled";
  }
  return "unknown";
}

/// 90 -> "sm_90a"
std::string arch_of(const char* op, std::int64_t capability) {
  cuda::DeviceInfo device;
  device.major = int_of(op, "capability", capability / 10);
  device.minor = int_of(op, "capability", capability % 10);
  return cuda::arch_of(device);
}

/// What a call launches whose requests have `rows` rows a KV head on average: the plan, attention.
std::string call_kernels(std::int64_t num_q_heads, std::int64_t num_kv_heads, std::int64_t head_dim,
                         std::int64_t page_size, ScalarType q_dtype, ScalarType kv_dtype,
                         bool softcap, bool alibi, std::int64_t fixed_split, std::int64_t rows,
                         std::int64_t capability) {
  constexpr const char* kOp = "call_kernels";
  return run([&] {
    const AttentionGroup group = group_of(kOp, num_q_heads, num_kv_heads, head_dim, page_size,
                                          q_dtype, kv_dtype, true, std::nullopt);
    const std::string arch = arch_of(kOp, capability);
    const cuda::AttentionFeatures features{.softcap = softcap, .alibi = alibi};
    const AttentionSpec spec = cuda::attention_spec(group, features, cuda::shared_budget(arch));
    std::optional<DecodeSpec> decode;
    if (fixed_split == 0) decode = cuda::decode_spec(spec, group.page_size, rows, arch);
    const cuda::AttentionDevice target = cuda::attention_device(arch);
    const PrefillSpec prefill = cuda::prefill_spec(group, features, target.most_shared);
    const bool many = !decode && cuda::prefill_is_chosen(prefill, rows, fixed_split, arch);
    const std::vector<cuda::KernelVariant> variants = {cuda::variant_of(cuda::plan_spec()),
                                                       decode ? cuda::variant_of(*decode)
                                                       : many ? cuda::variant_of(prefill)
                                                              : cuda::variant_of(spec)};
    return message(R"({"arch": )", quoted(arch), R"(, "attention": )",
                   quoted(decode ? cuda::kDecodeName
                          : many ? cuda::kPrefillName
                                 : cuda::kGenericName),
                   R"(, "kernels": )",
                   array(variants,
                         [&](const cuda::KernelVariant& variant) {
                           return message(R"({"name": )", quoted(variant.name), R"(, "threads": )",
                                          variant.threads, R"(, "shared_bytes": )",
                                          variant.shared_bytes, R"(, "cubin": )",
                                          quoted(text_of(cuda::cubin_place(variant, arch))), "}");
                         }),
                   "}");
  });
}

std::vector<std::int32_t> int32s(const std::vector<std::int64_t>& values, const char* arg) {
  std::vector<std::int32_t> narrow;
  narrow.reserve(values.size());
  for (const std::int64_t value : values) narrow.push_back(int_of("plan_preview", arg, value));
  return narrow;
}

/// Tasks as plan_tasks() shows them, in the order that ctas claim them.
std::string plan_preview(std::vector<std::int64_t> cu_seqlens_q, std::vector<std::int64_t> kv_lens,
                         std::int64_t num_sms, std::int64_t capability, std::int64_t num_q_heads,
                         std::int64_t num_kv_heads, std::int64_t head_dim, std::int64_t page_size,
                         ScalarType q_dtype, ScalarType kv_dtype, bool causal,
                         std::optional<std::int64_t> window, std::int64_t fixed_split) {
  return run([&] {
    const AttentionGroup group = group_of("plan_preview", num_q_heads, num_kv_heads, head_dim,
                                          page_size, q_dtype, kv_dtype, causal, window);
    const cuda::PlanPreview plan =
        cuda::preview_plan(group, int32s(cu_seqlens_q, "cu_seqlens_q"), int32s(kv_lens, "kv_lens"),
                           fixed_split, arch_of("plan_preview", capability), num_sms);
    std::string tasks;
    std::int64_t longest = 0;
    std::int64_t total = 0;
    for (std::size_t i = 0; i < plan.tasks.size(); ++i) {
      const plan::Task& task = plan.tasks[i];
      tasks += message(i > 0 ? ", [" : "[", task.request, ", ", task.kv_head, ", ", task.num_heads,
                       ", ", task.row_begin, ", ", task.row_end, ", ", task.kv_begin, ", ",
                       task.kv_end, ", ", task.partial, ", ", plan.costs[i], "]");
      longest = std::max(longest, plan.costs[i]);
      total += plan.costs[i];
    }
    // A partial row is its output and its LSE, in float32.
    const std::int64_t partial_row_bytes = 4 * (std::int64_t{group.head_dim} + 1);
    return message(R"({"tasks": [)", tasks, R"(], "num_workers": )", plan.num_workers,
                   R"(, "num_requests": )", plan.header.num_requests, R"(, "num_tokens": )",
                   plan.header.num_tokens, R"(, "num_partials": )", plan.header.num_partials,
                   R"(, "num_combines": )", plan.header.num_combines, R"(, "longest_task": )",
                   longest, R"(, "total_work": )", total, R"(, "narrow_tiles": )",
                   plan.narrow_tiles, R"(, "wide_tiles": )", plan.wide_tiles, R"(, "plan_bytes": )",
                   4 * plan.words, R"(, "partial_bytes": )",
                   plan.header.num_partial_rows * partial_row_bytes, "}");
  });
}

}  // namespace
}  // namespace hpcattn::torch_ops

STABLE_TORCH_LIBRARY_FRAGMENT(hpcattn, library) {
  library.def(
      "call_kernels(*, int num_q_heads, int num_kv_heads, int head_dim, int page_size, "
      "ScalarType q_dtype, ScalarType kv_dtype, bool softcap, bool alibi, int fixed_split, "
      "int rows, int capability) -> str");
  library.def(
      "plan_preview(int[] cu_seqlens_q, int[] kv_lens, *, int num_sms, int capability, "
      "int num_q_heads, int num_kv_heads, int head_dim, int page_size, ScalarType q_dtype, ScalarType kv_dtype, "
      "bool causal, int? window=None, int fixed_split=0) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(hpcattn, CompositeExplicitAutograd, library) {
  namespace ops = hpcattn::torch_ops;
  library.impl("call_kernels", TORCH_BOX(&ops::call_kernels));
  library.impl("plan_preview", TORCH_BOX(&ops::plan_preview));
}
