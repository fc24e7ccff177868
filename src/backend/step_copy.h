// SPDX-License-Identifier: Apache-2.0
// From an engine's tensors to those of a step's metadata.
#pragma once

#include "hpcattn/backend/metadata_builder.h"
#include "hpcattn/execution.h"

namespace hpcattn {

/// Fills metadata.cu_seqlens_prefill and, where they are other memory than the engine's,
/// cu_seqlens_q, kv_lens, page_table and slot_mapping. What a larger metadata has left becomes
/// requests of length 0, pages and slots of -1. In stream order on a GPU.
void copy_step(const CommonAttnMetadata& common, const HpcAttnMetadata& metadata,
               const Execution& execution);

}  // namespace hpcattn
