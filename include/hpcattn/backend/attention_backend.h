// SPDX-License-Identifier: Apache-2.0
// HpcAttentionBackend: what the backend can do. An engine asks it before it makes anything else.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcattn/backend/kv_cache.h"
#include "hpcattn/dtype.h"
#include "hpcattn/tensor.h"

namespace hpcattn {

/// NVIDIA's number of a GPU generation: {9, 0} is Hopper.
struct ComputeCapability {
  int major = 0;
  int minor = 0;
  friend auto operator<=>(const ComputeCapability&, const ComputeCapability&) = default;
};

/// Who attends to whom.
enum class AttentionType : std::uint8_t {
  kDecoder,         // new tokens to all KV of their request, causally
  kEncoder,         // the tokens of a step to each other, both ways, without a cache
  kEncoderOnly,     // the same; engines name it apart for models without a decoder
  kEncoderDecoder,  // a decoder's tokens to the encoder's KV, in pages, without a mask
};

/// The kernels that serve a device.
enum class ComputePath : std::uint8_t { kNone, kCpu, kGenericCuda, kHopper };

/// Which batches a captured graph may replay, from none to any.
enum class GraphSupport : std::uint8_t {
  kNever,
  kUniformSingleTokenDecode,
  kUniformBatch,  // every request with the same number of tokens
  kAlways,        // any mixture that fits the captured capacity
};

/// A yes or no with its reason.
struct GraphSupportAnswer {
  GraphSupport level = GraphSupport::kNever;
  std::string reason;
};

/// What an engine is about to run.
struct BackendRequest {
  Device device;
  std::optional<ComputeCapability> capability;  // of a GPU; needed there

  std::int64_t num_q_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t page_size = 16;       // not looked at for attention without a cache
  DType dtype = DType::kBFloat16;    // of the model's activations
  std::optional<DType> query_dtype;  // not given: `dtype`; float8_e4m3 from a fused prologue
  std::string kv_cache_dtype = "auto";
  KvCacheLayout layout = KvCacheLayout::kNhd;
  AttentionType attention_type = AttentionType::kDecoder;

  std::optional<double> scale;
  std::optional<std::int64_t> window;
  double softcap = 0.0;
  bool alibi = false;
  bool alibi_sqrt = false;
  bool sinks = false;
  bool non_causal = false;
  bool per_head_kv_scales = false;
  std::optional<DType> fused_output_dtype;
  std::int64_t num_speculative_tokens = 0;

  bool mla = false;                // multi-head latent attention
  bool sparse = false;             // attention to chosen pages alone
  bool multimodal_prefix = false;  // spans that attend both ways within a causal request
  bool batch_invariant = false;
  bool kv_connector = false;  // pages filled or read by another process
  int decode_context_parallel = 1;
  int prefill_context_parallel = 1;
};

/// Which kernel answers, and why that one.
struct KernelExplanation {
  std::string kernel;  // "cpu/narrow", "cuda/generic/attention"; empty where none does
  std::string reason;
  std::vector<std::string> refusals;  // as of validate()
};

class HpcAttentionBackend {
 public:
  /// "HPC_ATTN".
  static std::string_view name();

  static std::span<const DType> supported_dtypes();
  /// Names that parse_kv_cache_dtype knows.
  static std::span<const std::string_view> supported_kv_cache_dtypes();
  static std::span<const std::int64_t> supported_head_dims();
  static bool supports_page_size(std::int64_t page_size);
  /// Every supported page size is a multiple of this.
  static std::int64_t page_size_multiple();
  /// Page sizes that Hopper's kernels load fastest.
  static std::span<const std::int64_t> hopper_page_sizes();

  /// The path of a GPU generation: kHopper for 9.0, kGenericCuda for others from 8.0 on, else
  /// kNone.
  static ComputePath compute_path(ComputeCapability capability);
  /// The path whose kernels serve it in this build: where those of its own are missing, the generic
  /// ones.
  static ComputePath serving_path(ComputeCapability capability);
  /// There is one.
  static bool supports_compute_capability(ComputeCapability capability);
  /// Whether kernels of this path are in this build.
  static bool is_built(ComputePath path);

  /// The shape to allocate for a layer, and the order of its dims in memory, outermost first. With
  /// the layers dimension, dim 0 of the shape is the layer.
  static std::vector<std::int64_t> kv_cache_shape(std::int64_t num_pages, std::int64_t page_size,
                                                  std::int64_t num_kv_heads, std::int64_t head_dim,
                                                  KvCacheLayout layout = KvCacheLayout::kNhd);
  static std::vector<int> kv_cache_stride_order(bool include_layers_dimension = false,
                                                KvCacheLayout layout = KvCacheLayout::kNhd);
  /// The layout to choose where the engine leaves it open.
  static KvCacheLayout preferred_kv_cache_layout();
  static std::span<const KvCacheLayout> supported_kv_cache_layouts();

  /// forward() of the impl writes K and V: the engine must not do so as well.
  static constexpr bool kForwardIncludesKvCacheUpdate = true;
  /// forward() writes to the caller's output.
  static constexpr bool kAcceptsOutputBuffer = true;

  static GraphSupportAnswer graph_support(Device device);

  /// Every reason why the backend can not serve this; empty where it can.
  static std::vector<std::string> validate(const BackendRequest& request);

  /// Which kernel answers a step whose requests have `query_tokens` new tokens each.
  static KernelExplanation explain(const BackendRequest& request, std::int64_t query_tokens);
};

}  // namespace hpcattn
