// SPDX-License-Identifier: Apache-2.0
// From the description of a model to the kernels that its calls can take.
#pragma once

#include <vector>

#include "hpcattn/prepare.h"
#include "src/cuda/attention.h"
#include "src/cuda/kernel.h"

namespace hpcattn::cuda {

/// Each variant once, for any number of rows a request. K and V are taken to lie as a cache does,
/// rows at multiples of 16 bytes. Throws InvalidArgument or Unsupported for layers that a GPU does
/// not compute.
std::vector<KernelVariant> kernels_of(const std::vector<ModelDescription>& model,
                                      const AttentionDevice& device);

/// The models whose kernels ship built: see docs/torch.md.
std::vector<ModelDescription> shipped_models();

}  // namespace hpcattn::cuda
