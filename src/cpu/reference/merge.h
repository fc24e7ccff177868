// SPDX-License-Identifier: Apache-2.0
// merge_partials in float64 with plain loops, for tests alone. It checks nothing.
#pragma once

#include <vector>

#include "hpcattn/merge.h"

namespace hpcattn::reference {

struct MergeResult {
  std::vector<double> out;            // [num_tokens, num_heads, head_dim]
  std::vector<double> lse;            // [num_tokens, num_heads]
  std::vector<double> out_magnitude;  // as out: the same sum over |partial|
};

MergeResult merge_partials(const MergeArgs& args);

}  // namespace hpcattn::reference
