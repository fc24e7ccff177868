// SPDX-License-Identifier: Apache-2.0
// exp2 and tanh of vectors. Polynomials are Chebyshev fits made for these intervals (errors below
// 4e-9 relative before rounding). NaN stays NaN. Included by *.isa.cc alone.
#pragma once

#include "src/cpu/attention/simd.h"

namespace hpcattn::cpu::HPCATTN_ISA {

inline constexpr float kLog2E = 1.44269504088896341F;
inline constexpr float kInfinity = __builtin_inff();

/// 2^x for x <= 127; 0 below -126, so at -inf.
HPCATTN_INLINE Vec exp2(Vec x) {
  const IntVec tiny = x < -126.0F;
  const Vec bounded = tiny ? Vec{} : x;
  // Adding 1.5 * 2^23 rounds to an integer, which the low bits then hold.
  const Vec shifted = bounded + 12582912.0F;
  const Vec fraction = bounded - (shifted - 12582912.0F);
  Vec power = broadcast(0.0001546144469856913F);
  power = power * fraction + 0.0013400428177615838F;
  power = power * fraction + 0.009618056678524637F;
  power = power * fraction + 0.05550327226670302F;
  power = power * fraction + 0.24022650922288757F;
  power = power * fraction + 0.6931472067028326F;
  power = power * fraction + 1.0F;
  // Unsigned: of an x out of range or NaN the sum wraps, and the result is not used or NaN.
  const Vec result = (Vec)((UintVec)power + ((UintVec)shifted << 23));
  return tiny ? Vec{} : (x == x ? result : x);
}

HPCATTN_INLINE Vec tanh(Vec x) {
  const Vec z = x * x;
  Vec near = broadcast(0.0015656708151246836F);
  near = near * z - 0.007370253968638373F;
  near = near * z + 0.021271953284306554F;
  near = near * z - 0.05384062171330262F;
  near = near * z + 0.13332008018942823F;
  near = near * z - 0.33333281030590567F;
  near = near * z + 0.9999999965933273F;
  // 1 - 2 / (e^2|x| + 1), with the sign of x; past 20 it is 1 in float.
  const Vec magnitude = (Vec)((UintVec)x & 0x7fffffffU);
  const Vec bounded = magnitude > 20.0F ? broadcast(20.0F) : magnitude;
  const Vec far = 1.0F - 2.0F / (exp2(bounded * (2.0F * kLog2E)) + 1.0F);
  const Vec signed_far = (Vec)((UintVec)far | ((UintVec)x & 0x80000000U));
  return z < 0.64F ? x * near : signed_far;
}

}  // namespace hpcattn::cpu::HPCATTN_ISA
