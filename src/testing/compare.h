// SPDX-License-Identifier: Apache-2.0
// Element by element comparison of a result with the float64 reference.
#pragma once

#include <string>
#include <vector>

#include "hpcattn/tensor.h"

namespace hpcattn::testkit {

/// The text of a failure, empty when each |got - want| <= bound. It names the case, how many
/// elements are wrong, and of the worst: coordinates, both values and the bound. NaN where a number
/// is wanted is wrong whatever the bound; equal infinities are right.
std::string compare(const Tensor& got, const std::vector<double>& want,
                    const std::vector<double>& bound, const std::string& label);

/// The text of a failure, empty when the two tensors hold the same bits.
std::string compare_bits(const Tensor& got, const Tensor& want, const std::string& label);

/// Bound of a value that was computed in float32 within `error`, then rounded to `dtype`.
double rounded_bound(double want, double error, DType dtype);

}  // namespace hpcattn::testkit
