// SPDX-License-Identifier: Apache-2.0
// merge_partials on the CPU.
#pragma once

#include "hpcattn/merge.h"

namespace hpcattn::cpu {

/// Arguments as ops/merge.cc has checked them.
void merge_partials(const MergeArgs& args, const Execution& execution);

}  // namespace hpcattn::cpu
