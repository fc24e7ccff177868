// SPDX-License-Identifier: Apache-2.0
// StepWorkspace: how a layer's fused prologue tells that layer's attention, in the same step, what
// it has done. Nothing of one layer is written on metadata that all layers share, and nothing
// outlives its step. One workspace belongs to one stream of steps (a model runner); several live in
// one process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hpcattn/tensor.h"

namespace hpcattn {

/// What a prologue leaves, and what it was made for.
struct PrologueResult {
  bool kv_written = false;  // K and V of the step's tokens are in the cache
  Tensor q_scale;           // of a float8 query: float32 [num_tokens, num_q_heads]; else not given
  std::int64_t num_tokens = 0;     // rows of its query
  const void* query = nullptr;     // the memory of its query
  const void* kv_cache = nullptr;  // the memory of the cache it wrote; null where it wrote none
};

class StepWorkspace {
 public:
  /// Without room for Q scales: for prologues whose query is not float8.
  StepWorkspace() = default;

  /// `q_scales`: float32 [num_slots, max_tokens, max_q_heads], contiguous, of the caller's. A slot
  /// serves a layer from its prologue to its attention, so one does unless layers overlap.
  /// Addresses are the same in every step. Throws InvalidArgument.
  explicit StepWorkspace(const Tensor& q_scales);

  /// Begins the next step and returns its number: whatever earlier steps left is void.
  std::uint64_t begin_step();
  std::uint64_t step() const { return step_; }

  /// Room for a layer's Q scales of this step, [num_tokens, num_q_heads]. Throws InvalidArgument
  /// where the workspace is too small or every slot waits for its attention.
  Tensor reserve_q_scale(std::string_view layer, std::uint64_t step, std::int64_t num_tokens,
                         std::int64_t num_q_heads);

  /// Notes the result of a layer's prologue. Throws InvalidArgument for a step that is not the
  /// current one, and where the layer's last result waits yet.
  void put(std::string_view layer, std::uint64_t step, const PrologueResult& result);

  /// The result of this layer's prologue in this step, once; nothing where it ran none.
  /// Throws InvalidArgument for a step that is not the current one.
  std::optional<PrologueResult> take(std::string_view layer, std::uint64_t step);

  /// As take(), and leaves it.
  std::optional<PrologueResult> peek(std::string_view layer, std::uint64_t step) const;

 private:
  struct Entry {
    std::string layer;
    std::int64_t slot = -1;  // of q_scales_; -1: none
    bool has_result = false;
    PrologueResult result;
  };

  void check_step(std::string_view what, std::uint64_t step) const;
  Entry* find(std::string_view layer);
  const Entry* find(std::string_view layer) const;

  Tensor q_scales_;
  std::uint64_t step_ = 0;
  std::vector<Entry> entries_;  // of this step, not yet taken; seldom more than one
};

}  // namespace hpcattn
