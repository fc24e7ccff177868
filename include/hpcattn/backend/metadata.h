// SPDX-License-Identifier: Apache-2.0
// HpcAttnMetadata: what the layers of an attention group share in one step. Layers only read it.
#pragma once

#include <cstdint>

#include "hpcattn/tensor.h"

namespace hpcattn {

struct HpcAttnMetadata {
  /// The step that this was built for, as StepWorkspace counts them.
  std::uint64_t step = 0;

  /// Rows of a step that may be live; those past cu_seqlens_q's end are padding.
  std::int64_t num_actual_tokens = 0;

  /// The first num_decodes requests have no more tokens than the builder's threshold; the others
  /// are prefills. Both kinds are served by the same call, so the line between them changes no
  /// result.
  std::int64_t num_decodes = 0;
  std::int64_t num_decode_tokens = 0;
  std::int64_t num_prefills = 0;
  std::int64_t num_prefill_tokens = 0;

  std::int64_t max_query_len = 0;  // of one request
  std::int64_t max_kv_len = 0;     // of one request; a bound

  /// New tokens of each decode, 1 + speculative ones; 0 where decodes differ or there are none.
  std::int64_t decode_query_len = 0;

  bool causal = true;

  Tensor slot_mapping;  // [num_actual_tokens] int32 or int64; -1 is not written
  Tensor kv_lens;       // [num_requests] int32, new tokens included (engines: seq_lens)
  Tensor page_table;    // [num_requests, max_pages] int32 (engines: block_table)
  Tensor cu_seqlens_q;  // [num_requests + 1] int32 (engines: query_start_loc)

  Tensor cu_seqlens_decode;   // [num_decodes + 1] int32, a view of cu_seqlens_q; not given without
                              // decodes
  Tensor cu_seqlens_prefill;  // [num_prefills + 1] int32, from 0; not given without prefills

  /// Made once for all layers of the group; not given: each call makes its own.
  Tensor plan;

  std::int64_t num_requests() const { return num_decodes + num_prefills; }
};

}  // namespace hpcattn
