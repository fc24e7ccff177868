// SPDX-License-Identifier: Apache-2.0
// Filling an output that no operator computes.
#pragma once

#include "hpcattn/tensor.h"

namespace hpcattn {

/// Every element becomes 0. A CPU tensor of any rank and strides.
void fill_zero(const Tensor& tensor);

/// Every element of a float32 tensor becomes `value`.
void fill_float(const Tensor& tensor, float value);

}  // namespace hpcattn
