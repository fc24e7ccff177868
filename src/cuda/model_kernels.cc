// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/model_kernels.h"

#include <algorithm>
#include <utility>

#include "src/common/check.h"
#include "src/cuda/attention.h"
#include "src/cuda/device.h"
#include "src/cuda/merge.h"
#include "src/cuda/plan.h"
#include "src/cuda/prepare.h"
#include "src/cuda/rope.h"
#include "src/cuda/rope_pairs.h"
#include "src/cuda/step.h"
#include "src/cuda/store.h"
#include "src/ops/support.h"

namespace hpcattn {
namespace cuda {
namespace {

constexpr const char* kOp = "prepare";

/// The variants of a model, each once.
class Variants {
 public:
  void add(KernelVariant variant) {
    const auto same = [&](const KernelVariant& other) { return other.source == variant.source; };
    if (std::none_of(list_.begin(), list_.end(), same)) list_.push_back(std::move(variant));
  }
  std::vector<KernelVariant> take() { return std::move(list_); }

 private:
  std::vector<KernelVariant> list_;
};

void check_description(const ModelDescription& model) {
  const AttentionGroup& group = model.group;
  check(group.num_q_heads > 0 && group.num_kv_heads > 0 &&
            group.num_q_heads % group.num_kv_heads == 0,
        kOp, ": ", group.num_q_heads, ":", group.num_kv_heads,
        " heads, expected query heads that are a multiple of the KV heads.");
  check_supported(ops::head_dim_supported(group.head_dim), kOp, ": head_dim is ", group.head_dim,
                  ", supported are ", ops::supported_head_dims_text(), ".");
  check_supported(model.dtype == DType::kFloat16 || model.dtype == DType::kBFloat16, kOp,
                  ": dtype is ", name(model.dtype),
                  ", a GPU's attention takes float16 or bfloat16.");
  check_supported(group.q_dtype == model.dtype || group.q_dtype == DType::kFloat8E4M3, kOp,
                  ": q is ", name(group.q_dtype), " with activations in ", name(model.dtype),
                  ", expected ", name(model.dtype), " or float8_e4m3.");
  check_supported(group.kv_dtype == model.dtype || is_fp8(group.kv_dtype), kOp, ": KV is ",
                  name(group.kv_dtype), " with activations in ", name(model.dtype), ", expected ",
                  name(model.dtype), ", float8_e4m3 or float8_e5m2.");
}

void add_kernels(const ModelDescription& model, const AttentionDevice& device, Variants& variants) {
  check_description(model);
  const AttentionFeatures features{.softcap = model.softcap, .alibi = model.alibi};
  const AttentionSpec spec = attention_spec(model.group, features, device.shared_budget);
  variants.add(variant_of(spec));
  for (const int rows : {kMostDecodeRows / 2, kMostDecodeRows}) {
    const auto decode = decode_spec(spec, model.group.page_size, rows, device.arch);
    if (decode) variants.add(variant_of(*decode));
  }
  const PrefillSpec prefill = prefill_spec(model.group, features, device.most_shared);
  if (prefill_is_chosen(prefill, kMostDecodeRows + 1, 0, device.arch)) {
    variants.add(variant_of(prefill));
  }
  variants.add(variant_of(plan_spec()));
  variants.add(variant_of(store_spec(model.dtype, model.group.kv_dtype)));
  variants.add(variant_of(rope_spec(model.dtype, model.norm_policy, model.norm_scope)));
  for (const RopePairsSpec& pairs :
       rope_pairs_specs(model.dtype, model.group.head_dim, model.norm_policy, model.norm_scope)) {
    variants.add(variant_of(pairs));
  }
  variants.add(variant_of(merge_spec(model.dtype, model.dtype)));
  variants.add(variant_of(merge_spec(model.dtype, DType::kFloat32)));
  variants.add(variant_of(StepSpec{}));
}

Progress progress_of(const PrepareOptions& options) {
  if (!options.progress) return {};
  return [&options](const Prepared& ready) {
    options.progress({.done = ready.done,
                      .total = ready.total,
                      .name = ready.name,
                      .seconds = ready.seconds,
                      .compiled = ready.compiled});
  };
}

}  // namespace

std::vector<KernelVariant> kernels_of(const std::vector<ModelDescription>& model,
                                      const AttentionDevice& device) {
  Variants variants;
  for (const ModelDescription& layers : model) add_kernels(layers, device, variants);
  return variants.take();
}

std::vector<ModelDescription> shipped_models() {
  std::vector<ModelDescription> models;
  const auto add = [&](int head_dim, int page_size, DType dtype, DType kv_dtype, bool softcap) {
    ModelDescription model;
    model.group = {.num_q_heads = 1,
                   .num_kv_heads = 1,
                   .head_dim = head_dim,
                   .page_size = page_size,
                   .q_dtype = dtype,
                   .kv_dtype = kv_dtype};
    model.dtype = dtype;
    model.softcap = softcap;
    models.push_back(model);
    model.norm_policy = QkNormPolicy::kNormThenRope;
    models.push_back(model);
    if (dtype == DType::kBFloat16 && is_fp8(kv_dtype)) {
      model.group.q_dtype = DType::kFloat8E4M3;
      models.push_back(model);
    }
  };
  for (int head_dim : {64, 128, 256}) {
    for (int page_size : {0, 16, 64}) {  // packed, and pages of engines
      for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
        for (DType kv_dtype : {dtype, DType::kFloat8E4M3}) {
          add(head_dim, page_size, dtype, kv_dtype, false);
          // Gemma alone caps its scores among what is common, and has 256 dims.
          if (head_dim == 256) add(head_dim, page_size, dtype, kv_dtype, true);
        }
      }
    }
  }
  return models;
}

}  // namespace cuda

void prepare(const std::vector<ModelDescription>& model, Device device,
             const PrepareOptions& options) {
  check(device.type == DeviceType::kCuda, cuda::kOp, ": device is ", to_string(device),
        ", expected a CUDA device: nothing is compiled for the CPU.");
  const auto on = cuda::attention_device(cuda::device_info(device.index));
  cuda::prepare_kernels(cuda::kernels_of(model, on), device.index, cuda::progress_of(options),
                        options.num_threads);
}

void prepare_for_arch(const std::vector<ModelDescription>& model, const std::string& arch,
                      const PrepareOptions& options) {
  cuda::prepare_cubins(cuda::kernels_of(model, cuda::attention_device(arch)), arch,
                       cuda::progress_of(options), options.num_threads);
}

}  // namespace hpcattn
