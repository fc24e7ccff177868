// SPDX-License-Identifier: Apache-2.0
// HpcRopeNorm: the fused prologue of one attention layer (QK-norm, RoPE, KV write, FP8 query), as
// an engine calls it in place of its own norm and rotary modules.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "hpcattn/backend/attention_impl.h"
#include "hpcattn/backend/hpc_module.h"
#include "hpcattn/backend/metadata.h"
#include "hpcattn/backend/step_workspace.h"
#include "hpcattn/execution.h"
#include "hpcattn/rope.h"
#include "hpcattn/tensor.h"

namespace hpcattn {

/// How the query leaves the prologue.
enum class QueryQuant : std::uint8_t {
  kNone,          // in the model's dtype
  kPerTokenHead,  // float8_e4m3, a scale for each token and head, handed on by the workspace
  kStatic,        // float8_e4m3 by the layer's own q_scale
};

struct HpcRopeNormOptions {
  std::string layer_name;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  /// As RopeNormStoreKvArgs::cos_sin; must live as long as the module. The module runs where it
  /// lies.
  Tensor cos_sin_cache;
  RopeStyle style = RopeStyle::kNeox;
  std::array<std::int64_t, 3> mrope_section{};
  QkNormPolicy qk_norm_policy = QkNormPolicy::kNone;
  NormScope norm_scope = NormScope::kHead;
  double norm_eps = -1.0;  // the model's own; required, >= 0, with a policy that norms
  std::string kv_cache_dtype = "auto";
  QueryQuant query_quant = QueryQuant::kNone;
  double upper_max = 448.0;  // of kPerTokenHead
  /// A layer that shares another's KV writes none of its own.
  bool stores_kv = true;
};

struct HpcRopeNormForwardArgs {
  Tensor qkv;       // [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], last dim contiguous
  Tensor kv_cache;  // as HpcAttentionForwardArgs::kv_cache
  const HpcAttnMetadata* metadata = nullptr;  // null: a profiling run, out_q becomes 0
  const LayerScales* scales = nullptr;  // needed for an fp8 cache, and for QueryQuant::kStatic
  Tensor positions;                     // optional; needed with mrope_section
  Tensor out_q;  // [num_tokens, num_heads, head_dim]; every element is written
  Tensor out_k;  // optional [num_tokens, num_kv_heads, head_dim], as RopeNormStoreKvArgs::out_k
  Tensor out_v;
  StepWorkspace* workspace = nullptr;  // required but in a profiling run
};

class HpcRopeNorm : public HpcModule {
 public:
  /// Weights that process_weights_after_loading() looks for.
  static constexpr std::string_view kQueryNormWeight = "q_norm.weight";
  static constexpr std::string_view kKeyNormWeight = "k_norm.weight";

  /// Throws InvalidArgument or Unsupported.
  explicit HpcRopeNorm(HpcRopeNormOptions options);

  const HpcRopeNormOptions& options() const { return options_; }
  bool norms() const { return options_.qk_norm_policy != QkNormPolicy::kNone; }

  ModuleSupport support(const BackendRequest& request) const override;

  /// Takes the two norm weights in any float dtype and any stride, [head_dim] or, for
  /// NormScope::kToken, [heads * head_dim], into float32 buffers. They may be on the CPU or on the
  /// module's GPU; what lies there must be finished on, or before, the default stream. Looks for
  /// nothing where the policy does not norm.
  void process_weights_after_loading(std::span<const NamedWeight> weights) override;

  /// The buffers that kernels read: the same memory from construction on. Not given without norms.
  Tensor q_norm_weight() const;
  Tensor k_norm_weight() const;

  /// Norm, rotation, KV write and quantisation of a step's tokens; notes in the workspace that this
  /// layer's KV is written and where its Q scales lie. Throws InvalidArgument or Unsupported, and
  /// has then written nothing.
  void forward(const HpcRopeNormForwardArgs& args, const Execution& execution = {});

 private:
  RopeNormStoreKvArgs operator_args(const HpcRopeNormForwardArgs& args) const;

  HpcRopeNormOptions options_;
  std::shared_ptr<void> weights_memory_;
  Tensor q_weight_;  // float32; none without norms
  Tensor k_weight_;
  bool weights_loaded_ = false;
};

}  // namespace hpcattn
