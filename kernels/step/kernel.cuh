// SPDX-License-Identifier: Apache-2.0
// Entry of the kernel that puts a step into a graph's memory.
#pragma once

#include "kernels/step/config.h"
#include "kernels/step/word.h"

namespace hpcattn {

template <StepSpec>
__device__ void copy_step(const StepParams& p) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kStepThreads + threadIdx.x;
  if (index < num_step_words(p)) write_step_word(p, index);
}

}  // namespace hpcattn
