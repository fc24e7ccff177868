// SPDX-License-Identifier: Apache-2.0
// 2^x without the special-function units, which take 16 numbers a clock and bound fp8 attention.
// Plain C++, that the host tests.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace hpcattn {

/// Within 3 units roundoff for x from -126 to 127; below -127, as of -inf, 0; of NaN NaN. The
/// polynomial is the minimax one of relative error with 2^0 = 1, of [-1/2, 1/2].
inline float exp2_by_polynomial(float x) {
  // What is added to 1.5 2^23 is rounded to a whole number, which then stands in the lowest bits.
  constexpr float kRounding = 12582912.0F;
  constexpr std::uint32_t kOne = 0x3f800000U;
  x = x < -127.0F ? -127.0F : x;
  const float whole = x + kRounding;
  const float rest = x - (whole - kRounding);
  float power = 0.001326472731307149F;
  power = fmaf(power, rest, 0.009671512991189957F);
  power = fmaf(power, rest, 0.05550733581185341F);
  power = fmaf(power, rest, 0.24022242426872253F);
  power = fmaf(power, rest, 0.6931470036506653F);
  power = fmaf(power, rest, 1.0F);
  return power * std::bit_cast<float>((std::bit_cast<std::uint32_t>(whole) << 23) + kOne);
}

}  // namespace hpcattn
