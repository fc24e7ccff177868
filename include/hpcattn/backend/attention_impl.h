// SPDX-License-Identifier: Apache-2.0
// HpcAttentionImpl: the attention of one layer, as an engine calls it: KV write, then decode,
// prefill or both in one call. RoPE and norms come before it (HpcRopeNorm, or the model's own).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hpcattn/attention.h"
#include "hpcattn/backend/attention_backend.h"
#include "hpcattn/backend/metadata.h"
#include "hpcattn/backend/step_workspace.h"
#include "hpcattn/execution.h"
#include "hpcattn/tensor.h"

namespace hpcattn {

struct HpcAttentionImplOptions {
  std::int64_t num_heads = 0;
  std::int64_t head_size = 0;
  double scale = 0.0;  // multiplies q . k
  std::int64_t num_kv_heads = 0;
  std::optional<std::vector<float>> alibi_slopes;  // one a head
  std::optional<std::int64_t> sliding_window;      // KV tokens that a row sees, its own included
  std::string kv_cache_dtype = "auto";
  std::optional<double> logits_soft_cap;  // 0 or not given: none
  AttentionType attention_type = AttentionType::kDecoder;
  /// A layer whose KV this one reads; it then writes none of its own.
  std::optional<std::string> kv_sharing_target_layer_name;
  /// [num_heads], read at every call: its memory must live as long as the impl.
  Tensor sinks;
  /// Where ALiBi slopes are kept, if there are any; other parts go where the tensors of a call are.
  Device device;
};

/// A layer's name and its FP8 scales: float32 [1] or [num_kv_heads]. They belong to an fp8 cache,
/// and are not used with another, which stores K and V as they are.
struct LayerScales {
  std::string name;
  Tensor q_scale;  // of a float8 query that no prologue of this step made
  Tensor k_scale;
  Tensor v_scale;
};

struct HpcAttentionForwardArgs {
  const LayerScales* layer = nullptr;
  Tensor query;     // [num_tokens, num_heads, head_size]
  Tensor key;       // [num_tokens, num_kv_heads, head_size]; not given: nothing to write
  Tensor value;     // as key
  Tensor kv_cache;  // any form of KvCacheLayout; fp8 ones may come as bytes (uint8)
  const HpcAttnMetadata* metadata = nullptr;  // null: a profiling run, output becomes 0
  Tensor output;        // [num_tokens, num_heads, head_size]; every element is written
  Tensor output_scale;  // float32 [1]; for a float8 output
  Tensor lse;           // optional [num_tokens, num_heads] float32
  /// Where this layer's prologue left its result; null where there is no prologue.
  StepWorkspace* workspace = nullptr;
};

class HpcAttentionImpl {
 public:
  /// Throws InvalidArgument, or Unsupported with every reason.
  explicit HpcAttentionImpl(HpcAttentionImplOptions options);

  const HpcAttentionImplOptions& options() const { return options_; }

  /// Writes K and V unless the layer's prologue did in this step, or the layer shares another's;
  /// then attends. Rows past the live tokens become 0. Throws InvalidArgument or Unsupported, and
  /// has then written nothing.
  void forward(const HpcAttentionForwardArgs& args, const Execution& execution = {}) const;

 private:
  void encode(const HpcAttentionForwardArgs& args, const Execution& execution) const;
  void attend(const HpcAttentionForwardArgs& args, const Execution& execution) const;
  AttentionOptions attention_options(const HpcAttentionForwardArgs& args, bool causal) const;

  HpcAttentionImplOptions options_;
  std::shared_ptr<void> slopes_memory_;
  Tensor slopes_;  // [num_heads] on options_.device; none without ALiBi
};

}  // namespace hpcattn
