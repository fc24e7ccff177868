// SPDX-License-Identifier: Apache-2.0
// rope_norm_store_kv in float64 with plain loops, for tests alone. It checks nothing.
#pragma once

#include <vector>

#include "hpcattn/rope.h"
#include "src/cpu/reference/store.h"

namespace hpcattn::reference {

struct RopeResult {
  std::vector<double> q;  // [num_tokens, num_q_heads, head_dim], not scaled; padding 0
  std::vector<double> k;  // [num_tokens, num_kv_heads, head_dim], not scaled; padding 0
  std::vector<double> v;  // as k
  std::vector<double>
      q_scale;  // [num_tokens, num_q_heads] of a float8 out_q, given or computed; padding 0
  std::vector<Place> places;  // [num_tokens]
};

RopeResult rope_norm_store_kv(const RopeNormStoreKvArgs& args);

}  // namespace hpcattn::reference
