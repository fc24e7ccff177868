// SPDX-License-Identifier: Apache-2.0
// store_kv in float64 with plain loops, for tests alone. It checks nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "hpcattn/store.h"

namespace hpcattn::reference {

/// Where a token's K and V go; page -1: nowhere.
struct Place {
  std::int64_t page = -1;
  std::int64_t offset = 0;  // tokens from the page's begin
};

/// What a scale makes of a stored value: real = stored * scale. 1 for a tensor that is not given.
double scale_of(const Tensor& scale, std::int64_t head);

struct StoreResult {
  std::vector<double> k;  // [num_tokens, num_kv_heads, head_dim], K / k_scale, not yet rounded
  std::vector<double> v;
  std::vector<Place> places;  // [num_tokens]
};

StoreResult store_kv(const StoreKvArgs& args);

}  // namespace hpcattn::reference
