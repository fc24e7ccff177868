// SPDX-License-Identifier: Apache-2.0
#include "src/common/float_bits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace hpcattn {
namespace {

/// All finite values of a format by its definition, in ascending order of code (so of value).
std::vector<double> finite_values(int exponent_bits, int mantissa_bits, bool finite) {
  std::vector<double> values;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  for (int exponent = 0; exponent < (1 << exponent_bits) - (finite ? 0 : 1); ++exponent) {
    for (int mantissa = 0; mantissa < 1 << mantissa_bits; ++mantissa) {
      const bool last = exponent + 1 == 1 << exponent_bits && mantissa + 1 == 1 << mantissa_bits;
      if (finite && last) continue;  // its NaN
      const double fraction = std::ldexp(mantissa, -mantissa_bits);
      values.push_back(exponent == 0 ? std::ldexp(fraction, 1 - bias)
                                     : std::ldexp(1 + fraction, exponent - bias));
    }
  }
  return values;
}

template <typename Format>
void expect_format(const std::vector<double>& values) {
  for (std::size_t code = 0; code < values.size(); ++code) {
    ASSERT_EQ(Format::decode(std::uint32_t(code)), values[code]) << code;
    ASSERT_EQ(Format::decode(std::uint32_t(code) | Format::kSign), -values[code]) << code;
    ASSERT_EQ(Format::template encode<true>(float(values[code])), code);
    ASSERT_EQ(Format::template encode<true>(float(-values[code])), code | Format::kSign);
    if (code == 0) continue;
    // Between two neighbours: the nearer, and in the middle the even code.
    const double low = values[code - 1];
    const double middle = (low + values[code]) / 2;
    const double step = values[code] - low;
    const std::size_t even = code % 2 == 0 ? code : code - 1;
    ASSERT_EQ(Format::template encode<true>(float(middle)), even) << code;
    ASSERT_EQ(Format::template encode<true>(float(middle + step / 64)), code);
    ASSERT_EQ(Format::template encode<true>(float(middle - step / 64)), code - 1);
  }
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Format::template encode<true>(inf), values.size() - 1);
  EXPECT_EQ(Format::template encode<true>(-1e30F), (values.size() - 1) | Format::kSign);
  EXPECT_TRUE(std::isnan(Format::decode(Format::template encode<true>(std::nanf("")))));
}

TEST(FloatBits, Float8E4M3) { expect_format<Float8E4M3>(finite_values(4, 3, true)); }
TEST(FloatBits, Float8E5M2) { expect_format<Float8E5M2>(finite_values(5, 2, false)); }
TEST(FloatBits, Float16) { expect_format<Float16>(finite_values(5, 10, false)); }

TEST(FloatBits, LargestNumbers) {
  EXPECT_EQ(Float8E4M3::decode(Float8E4M3::encode<true>(1000.0F)), 448.0F);
  EXPECT_EQ(Float8E5M2::decode(Float8E5M2::encode<true>(1e9F)), 57344.0F);
  EXPECT_EQ(Float16::decode(Float16::encode<false>(65504.0F)), 65504.0F);
  EXPECT_TRUE(std::isinf(Float16::decode(Float16::encode<false>(65520.0F))));
}

TEST(FloatBits, BFloat16) {
  EXPECT_EQ(bfloat16_to_float(float_to_bfloat16(1.0F)), 1.0F);
  EXPECT_EQ(float_to_bfloat16(1.00390625F), 0x3f80);  // half way: to even
  EXPECT_EQ(float_to_bfloat16(1.01171875F), 0x3f82);
  EXPECT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(std::nanf("")))));
  EXPECT_TRUE(
      std::isinf(bfloat16_to_float(float_to_bfloat16(std::numeric_limits<float>::infinity()))));
}

}  // namespace
}  // namespace hpcattn
