// SPDX-License-Identifier: Apache-2.0
// The fused prologue on the CPU. Arguments were checked: see src/ops/rope_checks.h.
#pragma once

#include <cstdint>
#include <vector>

#include "hpcattn/execution.h"
#include "hpcattn/rope.h"

namespace hpcattn::cpu {

/// What the checks found out about each token on their way.
struct TokenPlaces {
  /// Tokens that are there; rows from here on are padding.
  std::int64_t num_live = 0;
  /// [num_live], with mrope [3, num_live]: rows of cos_sin.
  std::vector<std::int64_t> positions;
  /// [num_live] slots of the cache, kNoSlot: not written. Empty without a cache.
  std::vector<std::int64_t> slots;
};

void rope_norm_store_kv(const RopeNormStoreKvArgs& args, const TokenPlaces& places,
                        const Execution& execution);

}  // namespace hpcattn::cpu
