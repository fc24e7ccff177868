// SPDX-License-Identifier: Apache-2.0
// The float formats, read and written by arithmetic on their definition (sign, exponent, mantissa)
// and in double. Slow, and independent of src/common/float_bits.h on purpose: tests compare the
// two.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "hpcattn/tensor.h"

namespace hpcattn::reference {

/// The number that a code of a float dtype stands for; NaN and infinities too.
double decode(std::uint32_t code, DType dtype);

/// The code nearest to `value`, ties to even. Past the largest number: that number for fp8, else
/// infinity.
std::uint32_t encode(double value, DType dtype);

/// Element [index...] of a float tensor, an integer tensor likewise.
double element(const Tensor& tensor, std::initializer_list<std::int64_t> index);
std::int64_t integer(const Tensor& tensor, std::initializer_list<std::int64_t> index);

/// Rounds `value` into element [index...] of a float tensor.
void set_element(const Tensor& tensor, std::initializer_list<std::int64_t> index, double value);

/// Unit roundoff: |round(x) - x| <= unit_roundoff * |x| for a normal x.
double unit_roundoff(DType dtype);

/// The smallest number above zero, which is also the spacing of the subnormal ones.
double smallest(DType dtype);

/// The largest finite number.
double largest(DType dtype);

}  // namespace hpcattn::reference
