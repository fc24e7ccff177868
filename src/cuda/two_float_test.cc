// SPDX-License-Identifier: Apache-2.0
// kernels/tile/two_float.h as the host compiles it, against float64, which holds two float32.
#include "kernels/tile/two_float.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "src/testing/random.h"

namespace hpcattn {
namespace {

double value_of(TwoFloat x) { return static_cast<double>(x.hi) + static_cast<double>(x.lo); }

TwoFloat any_number(testkit::Rng& rng) {
  const auto hi = static_cast<float>(std::ldexp(rng.real(1.0, 2.0), int(rng.integer(-20, 20))));
  const float lo = hi * static_cast<float>(rng.real(-1.0, 1.0)) * 0x1p-25F;
  return rng.chance(0.5) ? TwoFloat{hi, lo} : TwoFloat{-hi, -lo};
}

TEST(TwoFloat, ErrorTermsAreExact) {
  testkit::Rng rng(1);
  for (int i = 0; i < 100000; ++i) {
    const float a = any_number(rng).hi;
    const float b = any_number(rng).hi;
    // A sum of exponents 40 apart has 64 bits: float64 has 53.
    ASSERT_EQ(static_cast<long double>(two_sum(a, b).hi) + two_sum(a, b).lo,
              static_cast<long double>(a) + b);
    ASSERT_EQ(value_of(two_product(a, b)), static_cast<double>(a) * static_cast<double>(b));
  }
}

TEST(TwoFloat, ArithmeticHas45Bits) {
  testkit::Rng rng(2);
  const auto expect_near = [](TwoFloat got, double want, double magnitude) {
    ASSERT_LE(std::fabs(value_of(got) - want), std::ldexp(magnitude, -45));
  };
  for (int i = 0; i < 100000; ++i) {
    const TwoFloat x = any_number(rng);
    const TwoFloat y = any_number(rng);
    const double a = value_of(x);
    const double b = value_of(y);
    expect_near(x + y, a + b, std::fabs(a) + std::fabs(b));
    expect_near(x * y, a * b, std::fabs(a * b));
    expect_near(x * y.hi, a * static_cast<double>(y.hi), std::fabs(a * b));
    expect_near(x / y.hi, a / static_cast<double>(y.hi), std::fabs(a / b));
    const TwoFloat positive = x.hi < 0.0F ? -x : x;
    expect_near(reciprocal_root(positive), 1.0 / std::sqrt(std::fabs(a)),
                1.0 / std::sqrt(std::fabs(a)));
  }
}

TEST(TwoFloat, QuotientsThatAreFloat32HaveNoRest) {
  testkit::Rng rng(3);
  for (int i = 0; i < 100000; ++i) {
    const auto quotient = static_cast<float>(rng.integer(1, 4095));
    const auto divisor = static_cast<float>(std::ldexp(rng.integer(1, 4095), -9));
    const TwoFloat found = TwoFloat{quotient * divisor, 0.0F} / divisor;
    ASSERT_EQ(found.hi, quotient);
    ASSERT_EQ(found.lo, 0.0F);
  }
}

TEST(TwoFloat, RoundsToOdd) {
  constexpr float kUlp = 0x1p-23F;
  EXPECT_EQ(round_to_odd({1.0F, 0.0F}), 1.0F);
  EXPECT_EQ(round_to_odd({1.0F, 0x1p-40F}), 1.0F + kUlp);
  EXPECT_EQ(round_to_odd({1.0F + kUlp, 0x1p-40F}), 1.0F + kUlp);
  EXPECT_EQ(round_to_odd({1.0F + kUlp, -0x1p-40F}), 1.0F + kUlp);
  EXPECT_EQ(round_to_odd({1.0F, -0x1p-40F}), 1.0F - kUlp / 2);
  EXPECT_EQ(round_to_odd({-1.0F, -0x1p-40F}), -1.0F - kUlp);
  EXPECT_EQ(round_to_odd({-1.0F, 0x1p-40F}), -1.0F + kUlp / 2);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(round_to_odd({kInfinity, 0.0F}), kInfinity);
  EXPECT_TRUE(std::isnan(round_to_odd({std::nanf(""), 0.0F})));
}

}  // namespace
}  // namespace hpcattn
