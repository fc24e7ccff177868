// SPDX-License-Identifier: Apache-2.0
// Filling an output that no operator computes.
#pragma once

#include "hpcattn/execution.h"
#include "hpcattn/tensor.h"

namespace hpcattn {

/// Every element becomes 0. Any rank and strides; on a GPU in the order of execution.stream.
void fill_zero(const Tensor& tensor, const Execution& execution);

/// Every element of a float32 tensor becomes `value`.
void fill_float(const Tensor& tensor, float value, const Execution& execution);

}  // namespace hpcattn
