// SPDX-License-Identifier: Apache-2.0
// HpcAttnMetadataBuilder: from an engine's description of a step to HpcAttnMetadata, once a step
// for each attention group.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hpcattn/backend/attention_backend.h"
#include "hpcattn/backend/metadata.h"
#include "hpcattn/execution.h"
#include "hpcattn/plan.h"
#include "hpcattn/tensor.h"

namespace hpcattn {

/// A step as an engine knows it; what HpcAttnMetadata takes over keeps its meaning.
struct CommonAttnMetadata {
  std::uint64_t step = 0;  // StepWorkspace::begin_step()'s number
  std::int64_t num_requests = 0;
  std::int64_t num_actual_tokens = 0;
  Tensor cu_seqlens_q;  // [num_requests + 1] int32; rows past its end are padding
  Tensor kv_lens;       // [num_requests] int32
  Tensor page_table;    // [num_requests, max_pages] int32; none for attention without a cache
  Tensor slot_mapping;  // [num_actual_tokens] int32 or int64, likewise; cross attention: one for
                        // each of the encoder's tokens that this step stores, or none
  bool causal = true;

  /// On a GPU: the lengths on the host, which engines have. The step is described from them
  /// (numbers of decodes and prefills, longest lengths), kernels read the ones above. Without
  /// cu_seqlens_q_cpu it is read back, which waits for the stream; without kv_lens_cpu max_kv_len
  /// is the model's longest. Bounds of kv_lens will do. Not needed on the CPU.
  Tensor cu_seqlens_q_cpu;  // [num_requests + 1] int32
  Tensor kv_lens_cpu;       // [num_requests] int32
};

struct HpcAttnMetadataBuilderOptions {
  AttentionGroup group;  // of the layers that this serves; `causal` is asked of each step
  AttentionType attention_type = AttentionType::kDecoder;  // others are never causal

  // Capacity: a larger step is refused.
  std::int64_t max_num_requests = 0;
  std::int64_t max_num_tokens = 0;  // of a step
  std::int64_t max_model_len = 0;   // KV tokens of one request

  /// A request with at most `reorder_batch_threshold` + num_speculative_tokens new tokens is a
  /// decode.
  std::int64_t reorder_batch_threshold = 1;
  std::int64_t num_speculative_tokens = 0;

  /// As PlanArgs::fixed_split: a request's bits do not depend on the batch around it.
  std::int64_t fixed_split = 0;

  Device device;
  /// On a GPU: metadata is made in the order of its stream, and read by layers on that stream.
  Execution execution;
};

/// A yes or no with its reason.
struct CascadeAnswer {
  bool use = false;
  std::string reason;
};

/// How to bring a batch into decodes-first order.
struct BatchOrder {
  std::int64_t num_decodes = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>>
      swaps;                        // to apply to the batch's rows, in order
  std::vector<std::int64_t> order;  // order[new place] = old place, after all swaps
};

/// Decodes (at most `threshold` new tokens) to the front, by the fewest swaps. Throws
/// InvalidArgument for a negative length or a threshold below 1.
BatchOrder decodes_first(std::span<const std::int64_t> query_lens, std::int64_t threshold);

class HpcAttnMetadataBuilder {
 public:
  /// Throws InvalidArgument or Unsupported (with every reason of HpcAttentionBackend::validate).
  explicit HpcAttnMetadataBuilder(HpcAttnMetadataBuilderOptions options);

  // Its plan and graph buffers are at fixed addresses that metadata points to.
  HpcAttnMetadataBuilder(const HpcAttnMetadataBuilder&) = delete;
  HpcAttnMetadataBuilder& operator=(const HpcAttnMetadataBuilder&) = delete;

  /// New tokens up to which a request counts as a decode.
  std::int64_t decode_threshold() const { return decode_threshold_; }
  const HpcAttnMetadataBuilderOptions& options() const { return options_; }

  /// The metadata of a step, over the engine's tensors; the plan lies in the builder's workspace,
  /// which the next build() overwrites. A batch that is not in decodes-first order is served as
  /// well: from its first long request on, all count as prefills.
  ///
  /// common_prefix_len: tokens that all requests share, for cascade attention. Must be 0.
  /// fast_build: no plan; every call makes its own. For a single layer.
  HpcAttnMetadata build(std::int64_t common_prefix_len, const CommonAttnMetadata& common,
                        bool fast_build = false);

  /// Whether to give build() a common prefix.
  static CascadeAnswer use_cascade_attention();

  /// For a drafting model's step: one layer, so as build() with fast_build.
  HpcAttnMetadata build_for_drafting(const CommonAttnMetadata& common);

  /// The metadata of a step whose graph is captured: every tensor lies in the builder's own memory
  /// and holds as many requests and tokens as `common` has, which is what a replay can take at
  /// most.
  HpcAttnMetadata build_for_graph_capture(const CommonAttnMetadata& common);

  /// Before a replay: puts a step into the memory of `metadata`, which build_for_graph_capture()
  /// made. Addresses and shapes stay; what the step leaves free becomes padding (requests of length
  /// 0, slots of -1). The plan is made anew. Throws InvalidArgument, and has then changed nothing,
  /// for a step over the captured size.
  void update_in_place(HpcAttnMetadata& metadata, const CommonAttnMetadata& common);

  /// The same step for a group of layers that differ in their pages alone.
  static HpcAttnMetadata update_page_table(const HpcAttnMetadata& metadata,
                                           const Tensor& page_table, const Tensor& slot_mapping);

 private:
  /// What describes a step: its lengths on the host.
  struct Lengths {
    std::vector<std::int64_t> offsets;  // cu_seqlens_q
    std::vector<std::int64_t> kv_lens;  // empty: not known here
  };

  // Memory for one captured size: a graph's metadata points into it for as long as the builder
  // lives.
  struct GraphBuffers {
    std::shared_ptr<void> memory;  // of all the tensors
    Tensor cu_seqlens_q;
    Tensor cu_seqlens_prefill;
    Tensor kv_lens;
    Tensor page_table;    // none without a cache
    Tensor slot_mapping;  // int64; likewise
    Tensor plan;
    std::int64_t num_tokens = 0;
    bool causal = true;
  };

  bool has_cache() const { return options_.group.page_size > 0; }
  std::int64_t max_pages() const;
  std::int64_t plan_words_needed() const;
  Lengths check_common(const CommonAttnMetadata& common) const;
  void check_pages(const CommonAttnMetadata& common) const;
  Lengths lengths_of(const CommonAttnMetadata& common) const;
  bool is_causal(const CommonAttnMetadata& common) const;
  HpcAttnMetadata describe(const CommonAttnMetadata& common, const Lengths& lengths,
                           const Tensor& prefill_offsets) const;
  void make_plan_in(HpcAttnMetadata& metadata, const Tensor& plan) const;
  GraphBuffers make_graph(const CommonAttnMetadata& common) const;
  HpcAttnMetadata fill_graph(const GraphBuffers& graph, const CommonAttnMetadata& common,
                             Lengths lengths) const;

  HpcAttnMetadataBuilderOptions options_;
  std::int64_t decode_threshold_ = 1;
  std::shared_ptr<void> memory_;  // of the next two
  Tensor plan_;
  Tensor cu_seqlens_prefill_;
  std::vector<GraphBuffers> graphs_;
};

}  // namespace hpcattn
