// SPDX-License-Identifier: Apache-2.0
// What the command line asks the library: which kernel a shape takes and why, what is supported,
// the tasks of a plan, which kernels ran. Answers are JSON, read by python/hpcattn/_introspect.py.
#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hpcattn/backend/attention_backend.h"
#include "hpcattn/counters.h"
#include "src/common/check.h"
#include "src/cpu/attention/attention.h"
#include "src/cpu/attention/task.h"
#include "src/cuda/plan.h"
#include "src/plan/plan.h"
#include "src/plan/split.h"
#include "torch/arguments.h"
#include "torch/json.h"

namespace hpcattn::torch_ops {
namespace {

/// Names to numbers.
std::string object(const std::map<std::string, std::int64_t>& numbers) {
  std::string json = "{";
  for (const auto& [key, number] : numbers) {
    json += message(json.size() > 1 ? ", " : "", quoted(key), ": ", number);
  }
  return json + "}";
}

std::string show_name(DType dtype) { return quoted(name(dtype)); }
std::string show_number(std::int64_t value) { return std::to_string(value); }

KvCacheLayout layout_of(std::string_view text) {
  for (const KvCacheLayout layout : HpcAttentionBackend::supported_kv_cache_layouts()) {
    if (name(layout) == text) return layout;
  }
  check(false, "explain: layout is \"", text, "\", expected one of ",
        array(HpcAttentionBackend::supported_kv_cache_layouts(),
              [](KvCacheLayout layout) { return quoted(name(layout)); }),
        ".");
  return KvCacheLayout::kNhd;
}

AttentionType attention_type_of(std::string_view text) {
  if (text == "decoder") return AttentionType::kDecoder;
  if (text == "encoder") return AttentionType::kEncoder;
  if (text == "encoder_only") return AttentionType::kEncoderOnly;
  if (text == "encoder_decoder") return AttentionType::kEncoderDecoder;
  check(false, "explain: attention_type is \"", text,
        "\", expected decoder, encoder, encoder_only or encoder_decoder.");
  return AttentionType::kDecoder;
}

/// Compute capability 9.0 as 90.
std::optional<ComputeCapability> capability_of(std::optional<std::int64_t> number) {
  if (!number) return std::nullopt;
  check(*number >= 0 && *number < 1000, "explain: capability is ", *number,
        ", expected ten times the major number plus the minor one, as in 90.");
  return ComputeCapability{static_cast<int>(*number / 10), static_cast<int>(*number % 10)};
}

std::string explain(std::int64_t query_tokens, std::string device, std::int64_t num_q_heads,
                    std::int64_t num_kv_heads, std::int64_t head_dim, std::int64_t page_size,
                    ScalarType dtype, std::optional<ScalarType> query_dtype,
                    std::string kv_cache_dtype, std::string layout, std::string attention_type,
                    std::optional<std::int64_t> capability, std::optional<double> scale,
                    std::optional<std::int64_t> window, double softcap, bool alibi, bool sinks,
                    bool non_causal, bool per_head_kv_scales, std::int64_t num_speculative_tokens,
                    bool fused_fp8_output) {
  return run([&] {
    check(device == "cpu" || device == "cuda", "explain: device is \"", device,
          "\", expected cpu or cuda.");
    BackendRequest request;
    request.device.type = device == "cpu" ? DeviceType::kCpu : DeviceType::kCuda;
    request.capability = capability_of(capability);
    request.num_q_heads = num_q_heads;
    request.num_kv_heads = num_kv_heads;
    request.head_dim = head_dim;
    request.page_size = page_size;
    request.dtype = dtype_of("explain", "dtype", dtype);
    if (query_dtype) request.query_dtype = dtype_of("explain", "query_dtype", *query_dtype);
    request.kv_cache_dtype = kv_cache_dtype;
    request.layout = layout_of(layout);
    request.attention_type = attention_type_of(attention_type);
    request.scale = scale;
    request.window = window;
    request.softcap = softcap;
    request.alibi = alibi;
    request.sinks = sinks;
    request.non_causal = non_causal;
    request.per_head_kv_scales = per_head_kv_scales;
    request.num_speculative_tokens = num_speculative_tokens;
    if (fused_fp8_output) request.fused_output_dtype = DType::kFloat8E4M3;
    const KernelExplanation answer = HpcAttentionBackend::explain(request, query_tokens);
    return message(R"({"kernel": )", quoted(answer.kernel), R"(, "reason": )",
                   quoted(answer.reason), R"(, "refusals": )", array(answer.refusals, quoted), "}");
  });
}

std::string_view path_name(ComputePath path) {
  switch (path) {
    case ComputePath::kNone: return "none";
    case ComputePath::kCpu: return "cpu";
    case ComputePath::kGenericCuda: return "generic_cuda";
    case ComputePath::kHopper: return "hopper";
  }
  return "unknown";
}

std::string capabilities() {
  using Backend = HpcAttentionBackend;
  std::string built;
  for (const ComputePath path :
       {ComputePath::kCpu, ComputePath::kGenericCuda, ComputePath::kHopper}) {
    built += message(built.empty() ? "" : ", ", quoted(path_name(path)), ": ",
                     Backend::is_built(path) ? "true" : "false");
  }
  return message(R"({"backend": )", quoted(Backend::name()), R"(, "dtypes": )",
                 array(Backend::supported_dtypes(), show_name), R"(, "kv_cache_dtypes": )",
                 array(Backend::supported_kv_cache_dtypes(), quoted), R"(, "head_dims": )",
                 array(Backend::supported_head_dims(), show_number), R"(, "page_size_multiple": )",
                 Backend::page_size_multiple(), R"(, "built": {)", built, "}}");
}

/// `tasks`: each as [request, kv_head, num_heads, row_begin, row_end, kv_begin, kv_end, first
/// partial row or -1, cost], in the order in which workers take them. `kernels`: tasks of each
/// kernel.
std::string plan_tasks(StableTensor plan) {
  return run([&] {
    Arguments args("plan_tasks");
    const Tensor tensor = args.input("plan", plan);
    const bool on_cpu = tensor.device().type == DeviceType::kCpu;
    std::optional<cuda::PlanCopy> copy;
    const plan::PlanView view = on_cpu ? plan::view(tensor) : copy.emplace(tensor).view();
    const auto show_task = [](const plan::Task& task) {
      return message("[", task.request, ", ", task.kv_head, ", ", task.num_heads, ", ",
                     task.row_begin, ", ", task.row_end, ", ", task.kv_begin, ", ", task.kv_end,
                     ", ", task.partial, ", ", plan::cost(task), "]");
    };
    std::map<std::string, std::int64_t> kernels;
    for (const plan::Task& task : view.tasks) {
      ++kernels[on_cpu ? cpu::kernel_name(task.row_end - task.row_begin) : std::string("cuda")];
    }
    // A partial row is its output, its maximum and its sum, in float32.
    const std::int64_t partial_row_bytes = 4 * (std::int64_t{view.header->head_dim} + 2);
    return message(R"({"tasks": )", array(view.tasks, show_task), R"(, "kernels": )",
                   object(kernels), R"(, "partial_bytes": )",
                   view.header->num_partial_rows * partial_row_bytes,
                   R"(, "scratch_bytes_per_thread": )", on_cpu ? sizeof(cpu::Scratch) : 0, "}");
  });
}

std::string counters_json() { return object(counters()); }

}  // namespace
}  // namespace hpcattn::torch_ops

STABLE_TORCH_LIBRARY_FRAGMENT(hpcattn, library) {
  library.def(
      "explain(int query_tokens, *, str device, int num_q_heads, int num_kv_heads, int head_dim, "
      "int page_size, ScalarType dtype, ScalarType? query_dtype=None, str kv_cache_dtype='auto', "
      "str layout='NHD', str attention_type='decoder', int? capability=None, float? scale=None, "
      "int? window=None, float softcap=0.0, bool alibi=False, bool sinks=False, "
      "bool non_causal=False, bool per_head_kv_scales=False, int num_speculative_tokens=0, "
      "bool fused_fp8_output=False) -> str");
  library.def("capabilities() -> str");
  library.def("plan_tasks(Tensor plan) -> str");
  library.def("counters() -> str");
  library.def("reset_counters() -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(hpcattn, CompositeExplicitAutograd, library) {
  namespace ops = hpcattn::torch_ops;
  library.impl("explain", TORCH_BOX(&ops::explain));
  library.impl("capabilities", TORCH_BOX(&ops::capabilities));
  library.impl("plan_tasks", TORCH_BOX(&ops::plan_tasks));
  library.impl("counters", TORCH_BOX(&ops::counters_json));
  library.impl("reset_counters", TORCH_BOX(&hpcattn::reset_counters));
}
