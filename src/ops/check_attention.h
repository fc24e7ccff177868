// SPDX-License-Identifier: Apache-2.0
// Argument checks of the attention operators. Each throws InvalidArgument or Unsupported.
#pragma once

#include "hpcattn/attention.h"

namespace hpcattn::ops {

void check_paged_attention(const PagedAttentionArgs& args);
void check_packed_attention(const PackedAttentionArgs& args);

}  // namespace hpcattn::ops
