// SPDX-License-Identifier: Apache-2.0
// The row operations of every instruction set that runs here, against reference/numbers.h.
#include "src/cpu/row_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "src/cpu/attention/dispatch.h"
#include "src/cpu/reference/numbers.h"
#include "src/testing/guarded_tensor.h"
#include "src/testing/rounded_check.h"

namespace hpcattn::cpu {
namespace {

using testkit::code_at;
using testkit::GuardedTensor;
using testkit::GuardSide;
using testkit::Rng;

constexpr DType kWide[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3,
                             DType::kFloat8E5M2};

class RowOpsTest : public testing::TestWithParam<std::string> {
 protected:
  const RowOps& ops_ = row_ops(GetParam());
};

TEST_P(RowOpsTest, IsTheOneAskedFor) { EXPECT_EQ(ops_.isa, GetParam()); }

TEST_P(RowOpsTest, LoadsEveryCode) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    GuardedTensor row(dtype, {65536});
    for (std::uint32_t code = 0; code < 65536; ++code) {
      row.tensor().data_as<std::uint16_t>()[code] = static_cast<std::uint16_t>(code);
    }
    std::vector<double> x(65536);
    ops_.load(row.tensor().data(), dtype, 65536, x.data());
    for (std::uint32_t code = 0; code < 65536; ++code) {
      const double want = reference::decode(code, dtype);
      ASSERT_TRUE(x[code] == want || (std::isnan(x[code]) && std::isnan(want)))
          << name(dtype) << code;
      if (!std::isnan(want)) {
        ASSERT_EQ(std::signbit(x[code]), std::signbit(want)) << name(dtype) << code;
      }
    }
  }
}

/// The numbers of a dtype (a sample of float32's), what lies half way between neighbours, and the
/// doubles next to those: where a second rounding, or one that breaks ties wrongly, shows.
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
      values.push_back(value);
      values.push_back(std::nextafter(value, 0.0));
      values.push_back(std::nextafter(value, 1e300));
      values.push_back(value * (1 + 1e-9));
      values.push_back(value * (1 - 1e-9));
    }
  }
  const std::size_t count = values.size();
  for (std::size_t i = 0; i < count; ++i) values.push_back(-values[i]);
  return values;
}

TEST_P(RowOpsTest, StoresRoundOnceToNearestEven) {
  Rng rng(3);
  for (DType dtype : kFloats) {
    const std::vector<double> values = hard_to_round(dtype, rng);
    const auto count = static_cast<std::int64_t>(values.size());
    GuardedTensor row(dtype, {count});
    ops_.store(values.data(), 1.0, count, row.tensor().data(), dtype);
    for (std::int64_t i = 0; i < count; ++i) {
      const double value = values[static_cast<std::size_t>(i)];
      const std::uint32_t want = reference::encode(value, dtype);
      const std::uint32_t got = code_at(row, {i});
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(reference::decode(got, dtype))) << name(dtype);
      } else if (std::fabs(value) < std::numeric_limits<float>::min()) {
        // On the way through float32, a subnormal number there, it was rounded already.
        ASSERT_LE(testkit::ulps_between(got, want, dtype), 1) << name(dtype) << " of " << value;
      } else {
        ASSERT_EQ(got, want) << name(dtype) << " of " << value << " = " << std::hexfloat << value;
      }
    }
  }
}

TEST_P(RowOpsTest, AnFp8StoreDividesAndOthersDoNot) {
  // 3 * every e4m3 number and every tie: a product with 1/3 in the place of the division breaks
  // ties.
  std::vector<double> values;
  for (std::uint32_t code = 0; code < 0x7e; ++code) {
    const double number = reference::decode(code, DType::kFloat8E4M3);
    values.push_back(3 * number);
    values.push_back(3 * (number + reference::decode(code + 1, DType::kFloat8E4M3)) / 2);
  }
  const auto count = static_cast<std::int64_t>(values.size());
  for (DType dtype : kFloats) {
    GuardedTensor row(dtype, {count});
    ops_.store(values.data(), 3.0, count, row.tensor().data(), dtype);
    for (std::int64_t i = 0; i < count; ++i) {
      const double value = values[static_cast<std::size_t>(i)] / (is_fp8(dtype) ? 3.0 : 1.0);
      ASSERT_EQ(code_at(row, {i}), reference::encode(value, dtype))
          << name(dtype) << " of " << value;
    }
  }
}

TEST_P(RowOpsTest, RowsOfAnyLengthStayWithinTheirMemory) {
  Rng rng(4);
  for (std::int64_t n = 0; n <= 70; ++n) {
    for (GuardSide side : {GuardSide::kAfter, GuardSide::kBefore}) {
      std::vector<double> x(static_cast<std::size_t>(n));
      for (DType dtype : kWide) {
        GuardedTensor row(dtype, {n}, side);
        row.fill_normal(rng);
        ops_.load(row.tensor().data(), dtype, n, x.data());
        for (std::int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(x[static_cast<std::size_t>(i)], reference::element(row, {i}))
              << name(dtype) << n;
        }
      }
      for (DType dtype : kFloats) {
        GuardedTensor row(dtype, {n}, side);
        ops_.store(x.data(), 1.0, n, row.tensor().data(), dtype);
        for (std::int64_t i = 0; i < n; ++i) {
          const double value = x[static_cast<std::size_t>(i)];
          ASSERT_EQ(code_at(row, {i}), reference::encode(value, dtype)) << name(dtype) << n;
        }
        ASSERT_TRUE(row.surroundings_intact()) << name(dtype) << n;
      }
    }
  }
}

TEST_P(RowOpsTest, SumsMaximaAndScaling) {
  Rng rng(5);
  for (std::int64_t n = 0; n <= 300; n += n < 70 ? 1 : 23) {
    std::vector<double> x;
    std::vector<double> weight;
    long double sum = 0.0L;
    double largest = 0.0;
    for (std::int64_t i = 0; i < n; ++i) {
      x.push_back(rng.normal());
      weight.push_back(rng.normal());
      sum += static_cast<long double>(x.back()) * x.back();
      largest = std::max(largest, std::fabs(x.back()));
    }
    EXPECT_NEAR(ops_.sum_squares(x.data(), n), static_cast<double>(sum),
                1e-13 * static_cast<double>(sum));
    EXPECT_EQ(ops_.max_abs(x.data(), n), largest);
    std::vector<double> scaled = x;
    ops_.scale(scaled.data(), weight.data(), 0.75, n);
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(scaled[i], x[i] * weight[i] * 0.75, 1e-15 * std::fabs(x[i]));
    }
  }
}

TEST_P(RowOpsTest, TheMaximumPassesOverNan) {
  std::vector<double> x(40, 1.0);
  x[3] = x[35] = std::nan("");
  x[20] = -7.0;
  EXPECT_EQ(ops_.max_abs(x.data(), 40), 7.0);
  x[20] = -std::numeric_limits<double>::infinity();
  EXPECT_EQ(ops_.max_abs(x.data(), 40), std::numeric_limits<double>::infinity());
}

TEST_P(RowOpsTest, RotatesPairs) {
  Rng rng(6);
  for (std::int64_t pairs = 0; pairs <= 64; ++pairs) {
    for (RopeStyle style : {RopeStyle::kNeox, RopeStyle::kInterleaved}) {
      const auto count = static_cast<std::size_t>(pairs);
      std::vector<double> x(2 * count + 3, 5.0);
      std::vector<double> cos(count);
      std::vector<double> sin(count);
      for (double& value : x) value = rng.normal();
      for (std::size_t i = 0; i < count; ++i) {
        cos[i] = rng.normal();
        sin[i] = rng.normal();
      }
      const std::vector<double> before = x;
      ops_.rotate(x.data(), cos.data(), sin.data(), pairs, style);
      for (std::size_t i = 0; i < count; ++i) {
        const bool neox = style == RopeStyle::kNeox;
        const std::size_t a = neox ? i : 2 * i;
        const std::size_t b = neox ? i + count : 2 * i + 1;
        EXPECT_NEAR(x[a], before[a] * cos[i] - before[b] * sin[i], 1e-14);
        EXPECT_NEAR(x[b], before[b] * cos[i] + before[a] * sin[i], 1e-14);
      }
      for (std::size_t i = 2 * count; i < x.size(); ++i) EXPECT_EQ(x[i], before[i]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, RowOpsTest, testing::ValuesIn(usable_isas()),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace hpcattn::cpu
