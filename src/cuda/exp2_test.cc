// SPDX-License-Identifier: Apache-2.0
// kernels/tile/exp2.h as the host compiles it, against float64.
#include "kernels/tile/exp2.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace hpcattn {
namespace {

TEST(Exp2ByPolynomial, IsWithinThreeUnitsRoundoff) {
  double largest = 0.0;
  double sum = 0.0;
  int count = 0;
  for (float x = -126.0F; x < 20.0F; x += 0.000731F) {
    const double want = std::exp2(static_cast<double>(x));
    const double error = exp2_by_polynomial(x) / want - 1.0;
    largest = std::fmax(largest, std::fabs(error));
    sum += error;
    ++count;
  }
  EXPECT_LT(largest, 3 * 0x1p-24);
  EXPECT_LT(std::fabs(sum / count), 0x1p-24);
}

TEST(Exp2ByPolynomial, OfWholeNumbersIsExact) {
  for (int x = -126; x <= 127; ++x) {
    EXPECT_EQ(exp2_by_polynomial(static_cast<float>(x)), std::ldexp(1.0F, x));
  }
}

TEST(Exp2ByPolynomial, OfWhatIsMaskedIsZeroAndOfNanNan) {
  EXPECT_EQ(exp2_by_polynomial(-std::numeric_limits<float>::infinity()), 0.0F);
  EXPECT_EQ(exp2_by_polynomial(-1000.0F), 0.0F);
  EXPECT_TRUE(std::isnan(exp2_by_polynomial(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace hpcattn
