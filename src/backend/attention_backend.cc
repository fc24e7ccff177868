// SPDX-License-Identifier: Apache-2.0
#include "hpcattn/backend/attention_backend.h"

#include <array>

#include "src/common/check.h"
#include "src/ops/support.h"

namespace hpcattn {
namespace {

constexpr std::array<std::string_view, 7> kKvCacheDTypes{"auto", "float32",  "float16", "bfloat16",
                                                         "fp8",  "fp8_e4m3", "fp8_e5m2"};
constexpr std::array<KvCacheLayout, 3> kLayouts{KvCacheLayout::kNhd, KvCacheLayout::kHnd,
                                                KvCacheLayout::kPacked};
constexpr ComputeCapability kFirstCapability{.major = 8, .minor = 0};
constexpr ComputeCapability kHopperCapability{.major = 9, .minor = 0};

}  // namespace

std::string_view HpcAttentionBackend::name() { return "HPC_ATTN"; }

std::span<const DType> HpcAttentionBackend::supported_dtypes() {
  return ops::supported_activation_dtypes();
}

std::span<const std::string_view> HpcAttentionBackend::supported_kv_cache_dtypes() {
  return kKvCacheDTypes;
}

std::span<const std::int64_t> HpcAttentionBackend::supported_head_dims() {
  return ops::supported_head_dims();
}

bool HpcAttentionBackend::supports_page_size(std::int64_t page_size) {
  return ops::page_size_supported(page_size);
}

std::int64_t HpcAttentionBackend::page_size_multiple() { return ops::kPageSizeMultiple; }

std::span<const std::int64_t> HpcAttentionBackend::hopper_page_sizes() {
  return ops::hopper_page_sizes();
}

ComputePath HpcAttentionBackend::compute_path(ComputeCapability capability) {
  if (capability < kFirstCapability) return ComputePath::kNone;
  return capability == kHopperCapability ? ComputePath::kHopper : ComputePath::kGenericCuda;
}

bool HpcAttentionBackend::is_built(ComputePath path) { return path != ComputePath::kNone; }

ComputePath HpcAttentionBackend::serving_path(ComputeCapability capability) {
  const ComputePath path = compute_path(capability);
  return path == ComputePath::kHopper && !is_built(path) ? ComputePath::kGenericCuda : path;
}

bool HpcAttentionBackend::supports_compute_capability(ComputeCapability capability) {
  return is_built(serving_path(capability));
}

std::vector<std::int64_t> HpcAttentionBackend::kv_cache_shape(std::int64_t num_pages,
                                                              std::int64_t page_size,
                                                              std::int64_t num_kv_heads,
                                                              std::int64_t head_dim,
                                                              KvCacheLayout layout) {
  check(num_pages >= 0 && num_kv_heads > 0, "kv_cache_shape: num_pages ", num_pages,
        " and num_kv_heads ", num_kv_heads, ", expected 0 or more and 1 or more.");
  check_supported(ops::page_size_supported(page_size), "kv_cache_shape: page_size ", page_size,
                  ", expected ", ops::supported_page_sizes_text(), ".");
  check_supported(ops::head_dim_supported(head_dim), "kv_cache_shape: head_dim ", head_dim,
                  ", expected ", ops::supported_head_dims_text(), ".");
  if (layout == KvCacheLayout::kPacked) return {num_pages, num_kv_heads, page_size, 2 * head_dim};
  return {num_pages, 2, page_size, num_kv_heads, head_dim};
}

std::vector<int> HpcAttentionBackend::kv_cache_stride_order(bool include_layers_dimension,
                                                            KvCacheLayout layout) {
  switch (layout) {
    case KvCacheLayout::kNhd:
      // A page's bytes of all layers lie together, so that a transfer moves them as one piece.
      if (include_layers_dimension) return {1, 0, 2, 3, 4, 5};
      return {0, 1, 2, 3, 4};
    case KvCacheLayout::kHnd:
      if (include_layers_dimension) return {1, 0, 2, 4, 3, 5};
      return {0, 1, 3, 2, 4};
    case KvCacheLayout::kPacked:
      // Engines that use this form keep the layers outermost.
      if (include_layers_dimension) return {0, 1, 2, 3, 4};
      return {0, 1, 2, 3};
  }
  return {};
}

KvCacheLayout HpcAttentionBackend::preferred_kv_cache_layout() { return KvCacheLayout::kNhd; }

std::span<const KvCacheLayout> HpcAttentionBackend::supported_kv_cache_layouts() {
  return kLayouts;
}

GraphSupportAnswer HpcAttentionBackend::graph_support(Device device) {
  if (device.type == DeviceType::kCpu) {
    return {.level = GraphSupport::kAlways,
            .reason =
                "a replay reads lengths, pages and the plan from fixed addresses, which "
                "update_in_place fills for any mixture of decodes and prefills that fits the "
                "captured size"};
  }
  return {.level = GraphSupport::kAlways,
          .reason =
              "kernels read lengths, pages and the plan on the device, at fixed addresses; "
              "update_in_place fills them in stream order before a replay, for any mixture of "
              "decodes and prefills that fits the captured size"};
}

}  // namespace hpcattn
