// SPDX-License-Identifier: Apache-2.0
// What a launch of the step kernel passes: a step as the engine has it, and memory of a fixed size
// that it goes to.
#pragma once

#include <cstdint>

#include "kernels/fused/views.h"

namespace hpcattn {

struct StepParams {
  // The engine's; int32 or int64.
  IndexView cu_seqlens_q;  // [num_requests + 1]
  IndexView kv_lens;       // [num_requests]
  IndexView page_table;    // [num_requests, num_columns]
  IndexView slots;         // [num_slots]
  std::int64_t num_requests = 0;
  std::int64_t num_columns = 0;
  std::int64_t num_slots = 0;
  std::int64_t num_decodes = 0;  // requests before the first prefill

  // Where it goes. A capacity of 0: nowhere. What the step leaves free is filled.
  std::int32_t* to_cu_seqlens_q = nullptr;  // [offsets], the last one repeated
  std::int32_t* to_prefill = nullptr;     // [prefill_offsets]: cu_seqlens_q of the prefills, from 0
  std::int32_t* to_kv_lens = nullptr;     // [requests], 0
  std::int32_t* to_page_table = nullptr;  // [requests, columns], -1
  std::int64_t* to_slots = nullptr;       // [slot_capacity], -1
  std::int64_t offsets = 0;
  std::int64_t prefill_offsets = 0;
  std::int64_t requests = 0;
  std::int64_t columns = 0;
  std::int64_t slot_capacity = 0;
};

}  // namespace hpcattn
