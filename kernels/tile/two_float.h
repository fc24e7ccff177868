// SPDX-License-Identifier: Apache-2.0
// Numbers as the sum of two float32: results of 45 bits, from float32 instructions alone. (Dekker,
// A Floating-Point Technique for Extending the Available Precision, 1971; Knuth, TAOCP 2, 4.2.2.)
// The error terms of sums and products are exact unless they fall below float32's normal numbers.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace hpcattn {

struct TwoFloat {
  float hi = 0.0F;
  float lo = 0.0F;  // at most half an ulp of hi, but right after two numbers cancel
};

inline TwoFloat two_sum(float a, float b) {
  const float sum = a + b;
  const float of_b = sum - a;
  return {sum, (a - (sum - of_b)) + (b - of_b)};
}

/// Where |a| >= |b|, or a is 0.
inline TwoFloat fast_two_sum(float a, float b) {
  const float sum = a + b;
  return {sum, b - (sum - a)};
}

inline TwoFloat two_product(float a, float b) {
  const float product = a * b;
  return {product, fmaf(a, b, -product)};
}

inline TwoFloat operator-(TwoFloat x) { return {-x.hi, -x.lo}; }

inline TwoFloat operator+(TwoFloat x, TwoFloat y) {
  const TwoFloat sum = two_sum(x.hi, y.hi);
  return fast_two_sum(sum.hi, sum.lo + (x.lo + y.lo));
}

inline TwoFloat operator*(TwoFloat x, float y) {
  const TwoFloat product = two_product(x.hi, y);
  return fast_two_sum(product.hi, fmaf(x.lo, y, product.lo));
}

inline TwoFloat operator*(TwoFloat x, TwoFloat y) {
  const TwoFloat product = two_product(x.hi, y.hi);
  return fast_two_sum(product.hi, product.lo + fmaf(x.hi, y.lo, x.lo * y.hi));
}

/// A quotient that is a float32 comes out as that and 0: what rounds it further sees its ties.
inline TwoFloat operator/(TwoFloat x, float y) {
  const float quotient = x.hi / y;
  const float rest = fmaf(-quotient, y, x.hi);
  return fast_two_sum(quotient, (rest + x.lo) / y);
}

/// 1 / sqrt(x) of a normal x > 0.
inline TwoFloat reciprocal_root(TwoFloat x) {
  const float root = 1.0F / sqrtf(x.hi);
  const TwoFloat one = x * two_product(root, root);  // nearly
  const float rest = (1.0F - one.hi) - one.lo;
  return fast_two_sum(root, 0.5F * root * rest);
}

/// x cut to 24 bits, of which the last is set where anything was cut. A second rounding, to fewer
/// bits, then gives what one rounding gives, ties included.
inline float round_to_odd(TwoFloat x) {
  const float sum = x.hi + x.lo;
  const float rest = x.lo - (sum - x.hi);
  const auto bits = std::bit_cast<std::uint32_t>(sum);
  if (!(fabsf(sum) <= 0x1.fffffep127F) || rest == 0.0F || (bits & 1U) != 0) return sum;
  return std::bit_cast<float>((rest < 0.0F) == (sum < 0.0F) ? bits + 1U : bits - 1U);
}

}  // namespace hpcattn
