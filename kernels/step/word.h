// SPDX-License-Identifier: Apache-2.0
// One thread's part of putting a step into a graph's memory: one number of it.
#pragma once

#include <cstdint>

#include "kernels/step/params.h"

namespace hpcattn {

constexpr std::int64_t num_step_words(const StepParams& p) {
  return p.offsets + p.prefill_offsets + p.requests + p.requests * p.columns + p.slot_capacity;
}

/// Offset of the request's first token; past the last request, of the end.
inline std::int64_t step_offset(const StepParams& p, std::int64_t request) {
  return p.cu_seqlens_q.at(request < p.num_requests ? request : p.num_requests);
}

/// Numbered in the order of the capacities in StepParams.
inline void write_step_word(const StepParams& p, std::int64_t index) {
  if (index < p.offsets) {
    p.to_cu_seqlens_q[index] = static_cast<std::int32_t>(step_offset(p, index));
    return;
  }
  index -= p.offsets;
  if (index < p.prefill_offsets) {
    p.to_prefill[index] = static_cast<std::int32_t>(step_offset(p, p.num_decodes + index) -
                                                    step_offset(p, p.num_decodes));
    return;
  }
  index -= p.prefill_offsets;
  if (index < p.requests) {
    const std::int64_t length = index < p.num_requests ? p.kv_lens.at(index) : 0;
    p.to_kv_lens[index] = static_cast<std::int32_t>(length);
    return;
  }
  index -= p.requests;
  if (index < p.requests * p.columns) {
    const std::int64_t request = quotient(index, p.columns);
    const std::int64_t column = index - request * p.columns;
    const bool live = request < p.num_requests && column < p.num_columns;
    const std::int64_t page = live ? p.page_table.at(request, column) : -1;
    p.to_page_table[index] = static_cast<std::int32_t>(page);
    return;
  }
  index -= p.requests * p.columns;
  p.to_slots[index] = index < p.num_slots ? p.slots.at(index) : -1;
}

}  // namespace hpcattn
