// SPDX-License-Identifier: Apache-2.0
#include "hpcattn/backend/step_workspace.h"

#include <algorithm>
#include <utility>

#include "src/common/check.h"
#include "src/ops/check_tensor.h"

namespace hpcattn {

StepWorkspace::StepWorkspace(const Tensor& q_scales) : q_scales_(q_scales) {
  ops::check_shape("StepWorkspace", "q_scales", q_scales,
                   {ops::kAnySize, ops::kAnySize, ops::kAnySize});
  ops::check_dtype("StepWorkspace", "q_scales", q_scales, {DType::kFloat32});
  check(
      q_scales.is_contiguous(), "StepWorkspace: q_scales is ", [&] { return to_string(q_scales); },
      " with gaps, expected contiguous memory.");
}

std::uint64_t StepWorkspace::begin_step() {
  entries_.clear();
  return ++step_;
}

Tensor StepWorkspace::reserve_q_scale(std::string_view layer, std::uint64_t step,
                                      std::int64_t num_tokens, std::int64_t num_q_heads) {
  check_step("reserve_q_scale", step);
  check(
      q_scales_.defined(), "StepWorkspace: layer '", layer,
      "' asks for room for Q scales, and the workspace was made without. Give it q_scales [num_slots, "
      "max_tokens, max_q_heads].");
  check(
      num_tokens >= 0 && num_tokens <= q_scales_.size(1) && num_q_heads >= 0 &&
          num_q_heads <= q_scales_.size(2),
      "StepWorkspace: layer '", layer, "' asks for Q scales of [", num_tokens, ", ", num_q_heads,
      "], and q_scales is ", [&] { return to_string(q_scales_); },
      ", expected at least as many tokens and heads.");
  Entry* entry = find(layer);
  check(entry == nullptr || !entry->has_result, "StepWorkspace: the last result of layer '", layer,
        "' in step ", step, " waits for its attention.");

  std::int64_t slot = entry == nullptr ? -1 : entry->slot;
  for (std::int64_t free = 0; slot < 0 && free < q_scales_.size(0); ++free) {
    const bool taken = std::any_of(entries_.begin(), entries_.end(),
                                   [&](const Entry& other) { return other.slot == free; });
    if (!taken) slot = free;
  }
  check(
      slot >= 0, "StepWorkspace: layer '", layer, "' finds all ", q_scales_.size(0),
      " slots of q_scales taken by layers that wait for their attention. Make as many slots as layers "
      "overlap.");
  if (entry == nullptr) {
    entries_.push_back({.layer = std::string(layer)});
    entry = &entries_.back();
  }
  entry->slot = slot;

  // A slot's rows lie as many apart as this layer has heads, so that its scales are contiguous.
  return Tensor::contiguous(q_scales_.select(0, slot).data(), DType::kFloat32,
                            {num_tokens, num_q_heads}, q_scales_.device());
}

void StepWorkspace::put(std::string_view layer, std::uint64_t step, const PrologueResult& result) {
  check_step("put", step);
  Entry* entry = find(layer);
  check(entry == nullptr || !entry->has_result, "StepWorkspace: the last result of layer '", layer,
        "' in step ", step, " waits for its attention.");
  if (entry == nullptr) {
    entries_.push_back({.layer = std::string(layer)});
    entry = &entries_.back();
  }
  entry->has_result = true;
  entry->result = result;
}

std::optional<PrologueResult> StepWorkspace::take(std::string_view layer, std::uint64_t step) {
  const std::optional<PrologueResult> result = peek(layer, step);
  if (result) {
    std::erase_if(entries_, [&](const Entry& entry) { return entry.layer == layer; });
  }
  return result;
}

std::optional<PrologueResult> StepWorkspace::peek(std::string_view layer,
                                                  std::uint64_t step) const {
  check_step("take", step);
  const Entry* entry = find(layer);
  if (entry == nullptr || !entry->has_result) return std::nullopt;
  return entry->result;
}

void StepWorkspace::check_step(std::string_view what, std::uint64_t step) const {
  check(step == step_, "StepWorkspace: ", what, " for step ", step,
        ", and the workspace is at step ", step_,
        ". Build metadata after begin_step(), with its number.");
}

StepWorkspace::Entry* StepWorkspace::find(std::string_view layer) {
  return const_cast<Entry*>(std::as_const(*this).find(layer));
}

const StepWorkspace::Entry* StepWorkspace::find(std::string_view layer) const {
  const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& other) { return other.layer == layer; });
  return entry == entries_.end() ? nullptr : &*entry;
}

}  // namespace hpcattn
