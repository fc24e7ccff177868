// SPDX-License-Identifier: Apache-2.0
// The kernels of a model, for python/hpcattn/prepare.py: all of them as source, and one of them
// made ready. Python asks for each from some threads of its own, so it can show how far it is.
#include <torch/csrc/stable/library.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "hpcattn/prepare.h"
#include "src/common/check.h"
#include "src/cuda/attention.h"
#include "src/cuda/cubin_store.h"
#include "src/cuda/device.h"
#include "src/cuda/model_kernels.h"
#include "src/cuda/prepare.h"
#include "torch/arguments.h"
#include "torch/json.h"

namespace hpcattn::torch_ops {
namespace {

constexpr const char* kOp = "prepare";

QkNormPolicy policy_of(std::string_view text) {
  if (text == "none") return QkNormPolicy::kNone;
  if (text == "rope_then_norm") return QkNormPolicy::kRopeThenNorm;
  check(text == "norm_then_rope", kOp, ": norm_policy is '", text,
        "', expected 'none' or 'rope_then_norm' or 'norm_then_rope'.");
  return QkNormPolicy::kNormThenRope;
}

NormScope scope_of(std::string_view text) {
  if (text == "head") return NormScope::kHead;
  check(text == "token", kOp, ": norm_scope is '", text, "', expected 'head' or 'token'.");
  return NormScope::kToken;
}

std::string show_variant(const cuda::KernelVariant& variant) {
  return message("{\"name\": ", quoted(variant.name), ", \"source\": ", quoted(variant.source),
                 ", \"threads\": ", variant.threads, ", \"shared_bytes\": ", variant.shared_bytes,
                 "}");
}

/// A device, else an arch.
cuda::AttentionDevice target_of(std::optional<std::int64_t> device,
                                const std::optional<std::string>& arch) {
  if (device) return cuda::attention_device(cuda::device_info(int_of(kOp, "device", *device)));
  check(arch.has_value(), kOp, ": neither a device nor an arch is given.");
  return cuda::attention_device(*arch);
}

/// All kernels of layers that are alike.
std::string model_kernels(std::int64_t num_q_heads, std::int64_t num_kv_heads,
                          std::int64_t head_dim, std::int64_t page_size, ScalarType dtype,
                          ScalarType q_dtype, ScalarType kv_cache_dtype, bool softcap, bool alibi,
                          std::string norm_policy, std::string norm_scope,
                          std::optional<std::int64_t> device, std::optional<std::string> arch) {
  return run([&] {
    ModelDescription model;
    model.group = {.num_q_heads = int_of(kOp, "num_q_heads", num_q_heads),
                   .num_kv_heads = int_of(kOp, "num_kv_heads", num_kv_heads),
                   .head_dim = int_of(kOp, "head_dim", head_dim),
                   .page_size = int_of(kOp, "page_size", page_size),
                   .q_dtype = dtype_of(kOp, "q_dtype", q_dtype),
                   .kv_dtype = dtype_of(kOp, "kv_cache_dtype", kv_cache_dtype)};
    model.dtype = dtype_of(kOp, "dtype", dtype);
    model.softcap = softcap;
    model.alibi = alibi;
    model.norm_policy = policy_of(norm_policy);
    model.norm_scope = scope_of(norm_scope);
    return array(cuda::kernels_of({model}, target_of(device, arch)), show_variant);
  });
}

std::string shipped_kernels(std::string arch) {
  return run([&] {
    const cuda::AttentionDevice target = target_of(std::nullopt, arch);
    return array(cuda::kernels_of(cuda::shipped_models(), target), show_variant);
  });
}

/// Loads a variant on a GPU; or, for an arch, has it in the cache or writes it to `folder`.
std::string prepare_kernel(std::string name, std::string source, std::int64_t threads,
                           std::int64_t shared_bytes, std::optional<std::int64_t> device,
                           std::optional<std::string> arch, std::optional<std::string> folder) {
  return run([&] {
    const cuda::KernelVariant variant{.name = std::move(name),
                                      .source = std::move(source),
                                      .threads = int_of(kOp, "threads", threads),
                                      .shared_bytes = shared_bytes};
    cuda::Prepared ready;
    const cuda::Progress keep = [&](const cuda::Prepared& prepared) { ready = prepared; };
    std::int64_t bytes = 0;
    if (device) {
      cuda::prepare_kernels({&variant, 1}, int_of(kOp, "device", *device), keep, 1);
    } else {
      check(arch.has_value(), kOp, ": neither a device nor an arch is given.");
      if (folder) {
        bytes = cuda::write_shipped(variant, *arch, *folder);
        ready.compiled = true;
      } else {
        cuda::prepare_cubins({&variant, 1}, *arch, keep, 1);
      }
    }
    return message("{\"seconds\": ", ready.seconds,
                   ", \"compiled\": ", ready.compiled ? "true" : "false", ", \"bytes\": ", bytes,
                   "}");
  });
}

}  // namespace
}  // namespace hpcattn::torch_ops

STABLE_TORCH_LIBRARY_FRAGMENT(hpcattn, library) {
  library.def(
      "model_kernels(*, int num_q_heads, int num_kv_heads, int head_dim, int page_size, "
      "ScalarType dtype, ScalarType q_dtype, ScalarType kv_cache_dtype, bool softcap, bool alibi, "
      "str norm_policy, str norm_scope, int? device=None, str? arch=None) -> str");
  library.def("shipped_kernels(str arch) -> str");
  library.def(
      "prepare_kernel(str name, str source, int threads, int shared_bytes, *, int? device=None, "
      "str? arch=None, str? folder=None) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(hpcattn, CompositeExplicitAutograd, library) {
  namespace ops = hpcattn::torch_ops;
  library.impl("model_kernels", TORCH_BOX(&ops::model_kernels));
  library.impl("shipped_kernels", TORCH_BOX(&ops::shipped_kernels));
  library.impl("prepare_kernel", TORCH_BOX(&ops::prepare_kernel));
}
