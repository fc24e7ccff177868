// SPDX-License-Identifier: Apache-2.0
// Argument checks of the attention operators. Each throws InvalidArgument or Unsupported.
#pragma once

#include "hpcattn/attention.h"

namespace hpcattn::ops {

/// Shapes, dtypes, devices, strides, options: nothing that is read from memory.
void check_paged_attention(const PagedAttentionArgs& args);
void check_packed_attention(const PackedAttentionArgs& args);

/// Lengths, page ids, scales, sinks and slopes, after the checks above; on a GPU only where
/// `execution.check_values` asks for it.
void check_paged_attention_values(const PagedAttentionArgs& args, const Execution& execution);
void check_packed_attention_values(const PackedAttentionArgs& args, const Execution& execution);

}  // namespace hpcattn::ops
