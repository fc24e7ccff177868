// SPDX-License-Identifier: Apache-2.0
// A step's lengths, pages and slots into memory of a fixed size, in one launch: what a captured
// graph reads at its replay.
#pragma once

#include <vector>

#include "kernels/step/config.h"
#include "kernels/step/params.h"
#include "src/cuda/kernel.h"

namespace hpcattn::cuda {

KernelVariant variant_of(const StepSpec& spec);

/// The one that there is.
std::vector<KernelVariant> all_step_variants();

/// In stream order. Every pointer is to memory of that device.
void copy_step(const StepParams& params, int device, const Execution& execution);

}  // namespace hpcattn::cuda
