// SPDX-License-Identifier: Apache-2.0
// kernels/tile/convert.h as the host compiles it, against the formats' definition. Where the device
// has instructions, the GPU's tests of the operators stand in for these.
#include "kernels/tile/convert.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <cmath>
#include <limits>

#include "src/cpu/reference/numbers.h"
#include "src/testing/guarded_tensor.h"
#include "src/testing/rounded_check.h"

namespace hpcattn {
namespace {

using testkit::GuardedTensor;
using testkit::GuardSide;
using testkit::Rng;

constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3,
                             DType::kFloat8E5M2};

TEST(Convert, DecodesEveryCode) {
  for (DType dtype : kFloats) {
    const std::uint32_t num_codes = size_bytes(dtype) == 1 ? 256 : 65536;
    const std::uint32_t step = dtype == DType::kFloat32 ? 65521 : 1;
    for (std::uint32_t i = 0; i < num_codes; ++i) {
      const std::uint32_t code = i * step;
      float x[kLaneElements];
      load_numbers(reinterpret_cast<const char*>(&code), dtype, 1, false, x);
      const double want = reference::decode(code, dtype);
      ASSERT_TRUE(x[0] == want || (std::isnan(x[0]) && std::isnan(want))) << name(dtype) << code;
      for (int rest = 1; rest < kLaneElements; ++rest) ASSERT_EQ(x[rest], 0.0F);
    }
  }
}

/// Numbers of a dtype, what lies half way between neighbours, and the doubles next to those.
std::vector<double> hard_to_round(DType dtype, Rng& rng) {
  const std::int64_t num_codes = std::int64_t{1} << (8 * size_bytes(dtype) - 1);
  std::vector<double> values = {
      0.0, 1e300, 1e-300, 5e-324, std::numeric_limits<double>::infinity(), std::nan("")};
  for (std::int64_t i = 0; i < std::min<std::int64_t>(num_codes - 1, 40000); ++i) {
    const std::int64_t code = dtype == DType::kFloat32 ? rng.integer(0, 0x7f7ffffe) : i;
    const double number = reference::decode(static_cast<std::uint32_t>(code), dtype);
    const double next = reference::decode(static_cast<std::uint32_t>(code + 1), dtype);
    if (!std::isfinite(number)) continue;
    const double half_way = std::isfinite(next) ? (number + next) / 2 : number * 1.0001;
    for (double value : {number, half_way}) {
      for (double near : {value, std::nextafter(value, 0.0), std::nextafter(value, 1e300),
                          value * (1 + 1e-9), value * (1 - 1e-9)}) {
        values.push_back(near);
        values.push_back(-near);
      }
    }
  }
  while (values.size() % kLaneElements != 0) values.push_back(1.0);
  return values;
}

TEST(Convert, RoundsOnceToNearestEven) {
  Rng rng(3);
  for (DType dtype : kFloats) {
    const std::vector<double> values = hard_to_round(dtype, rng);
    GuardedTensor row(dtype, {kLaneElements});
    for (std::size_t i = 0; i < values.size(); i += kLaneElements) {
      double x[kLaneElements];
      for (std::size_t j = 0; j < kLaneElements; ++j) x[j] = values[i + j];
      store_numbers(x, row.tensor().data_as<char>(), dtype, kLaneElements, i % 16 == 0);
      for (std::int64_t j = 0; j < kLaneElements; ++j) {
        const double value = x[j];
        const std::uint32_t want = reference::encode(value, dtype);
        const std::uint32_t got = testkit::code_at(row, {j});
        if (std::isnan(value)) {
          ASSERT_TRUE(std::isnan(reference::decode(got, dtype))) << name(dtype);
        } else if (std::fabs(value) < std::numeric_limits<float>::min()) {
          ASSERT_LE(testkit::ulps_between(got, want, dtype), 1) << name(dtype) << " of " << value;
        } else {
          ASSERT_EQ(got, want) << name(dtype) << " of " << value << " = " << std::hexfloat << value;
        }
      }
    }
  }
}

TEST(Convert, ShortPiecesStayWithinTheirMemory) {
  Rng rng(4);
  for (DType dtype : kFloats) {
    for (int count = 0; count <= kLaneElements; ++count) {
      for (GuardSide side : {GuardSide::kAfter, GuardSide::kBefore}) {
        double x[kLaneElements];
        for (double& value : x) value = rng.normal();
        GuardedTensor row(dtype, {count}, side);
        store_numbers(x, row.tensor().data_as<char>(), dtype, count, false);
        EXPECT_TRUE(row.surroundings_intact());
        float back[kLaneElements];
        load_numbers(row.tensor().data_as<char>(), dtype, count, false, back);
        for (int i = 0; i < kLaneElements; ++i) {
          const double want =
              i < count ? reference::decode(reference::encode(x[i], dtype), dtype) : 0.0;
          EXPECT_EQ(back[i], want) << name(dtype) << " " << count << " " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace hpcattn
