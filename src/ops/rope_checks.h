// SPDX-License-Identifier: Apache-2.0
// The argument checks of rope_norm_store_kv. Shapes and dtypes can be asked of any device; values
// are read on the CPU, where checking them finds each token's position and slot on the way.
#pragma once

#include <string_view>

#include "hpcattn/rope.h"
#include "src/cpu/rope.h"

namespace hpcattn::ops {

inline constexpr std::string_view kRopeOp = "rope_norm_store_kv";

/// Throws InvalidArgument or Unsupported.
void check_rope_arguments(const RopeNormStoreKvArgs& args);

/// Lengths, positions, pages and slots, which lie in CPU tensors; of the others only shapes are
/// asked. Throws InvalidArgument.
cpu::TokenPlaces resolve_rope_tokens(const RopeNormStoreKvArgs& args);

}  // namespace hpcattn::ops
