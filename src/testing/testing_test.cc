// SPDX-License-Identifier: Apache-2.0
// The tests' own tools: guards, poison and comparison must be able to fail.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "src/cpu/reference/numbers.h"
#include "src/testing/attention_case.h"
#include "src/testing/attention_check.h"
#include "src/testing/compare.h"

namespace hpcattn::testkit {
namespace {

TEST(GuardedBufferDeathTest, TouchingPastEitherEndFaults) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const GuardedBuffer after(100, GuardSide::kAfter);
  const GuardedBuffer before(100, GuardSide::kBefore);
  EXPECT_DEATH(static_cast<volatile char*>(after.data())[100] = 1, "");
  EXPECT_DEATH(static_cast<volatile char*>(before.data())[-1] = 1, "");
}

TEST(GuardedBuffer, SlackShowsAWriteThatDoesNotFault) {
  GuardedBuffer buffer(100, GuardSide::kBefore);
  EXPECT_TRUE(buffer.slack_intact());
  static_cast<volatile char*>(buffer.data())[100] = 1;
  EXPECT_FALSE(buffer.slack_intact());
}

TEST(GuardedTensor, StartsAsNanInEveryFloatDtypeAndSeesWritesInGaps) {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3,
                      DType::kFloat8E5M2}) {
    const GuardedTensor tensor(dtype, {2, 3, 4}, GuardSide::kAfter, 5);
    for_each_index(tensor, [&](const std::vector<std::int64_t>& i, std::int64_t) {
      ASSERT_TRUE(std::isnan(reference::element(tensor, {i[0], i[1], i[2]}))) << name(dtype);
    });
    EXPECT_TRUE(tensor.surroundings_intact());
    const std::int64_t gap = 4 * size_bytes(dtype);  // the byte after the first row
    tensor.tensor().data_as<std::uint8_t>()[gap] = 0;
    EXPECT_FALSE(tensor.surroundings_intact()) << name(dtype);
  }
}

TEST(Compare, NamesTheWorstElement) {
  const GuardedTensor got = GuardedTensor::of_floats({1.0, 2.5, 3.25});
  EXPECT_EQ(compare(got, {1.0, 2.5, 3.25}, {0.0, 0.0, 0.0}, "case"), "");
  const std::string report = compare(got, {1.0, 2.0, 3.0}, {0.1, 0.1, 0.1}, "case 7");
  EXPECT_NE(report.find("case 7: 2 of 3"), std::string::npos) << report;
  EXPECT_NE(report.find("[1]: got 2.5, expected 2"), std::string::npos) << report;
}

TEST(Compare, NanAndUnequalInfinitiesFail) {
  const GuardedTensor got = GuardedTensor::of_floats({std::nan(""), -INFINITY});
  EXPECT_NE(compare(got, {0.0, -INFINITY}, {1e30, 1.0}, "nan"), "");
  EXPECT_NE(compare(got, {std::nan(""), INFINITY}, {1e30, 1e30}, "inf"), "");
  EXPECT_EQ(compare(got, {std::nan(""), -INFINITY}, {0.0, 0.0}, "same"), "");
}

TEST(CompareBits, TellsZerosApart) {
  const GuardedTensor plus = GuardedTensor::of_floats({0.0});
  const GuardedTensor minus = GuardedTensor::of_floats({-0.0});
  EXPECT_EQ(compare_bits(plus, plus, "same"), "");
  EXPECT_NE(compare_bits(plus, minus, "signs"), "");
}

TEST(AttentionBatch, DeadSlotsAreNanAndUnusedEntriesOutsideThePool) {
  AttentionCase c;
  c.q_lens = {1, 2};
  c.kv_lens = {17, 30};
  for (DType dtype : {DType::kFloat32, DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    c.kv_dtype = dtype;
    AttentionBatch batch(c);
    const PagedAttentionArgs args = batch.paged();
    std::set<std::int64_t> live;  // slots
    for (std::int64_t r = 0; r < 2; ++r) {
      for (std::int64_t i = 0; i < args.page_table.size(1); ++i) {
        const std::int64_t page = reference::integer(args.page_table, {r, i});
        const bool used = i * c.page_size < c.kv_lens[std::size_t(r)];
        EXPECT_EQ(page >= 0 && page < args.k_cache.size(0), used);
        for (std::int64_t s = 0; used && s < c.page_size; ++s) {
          if (i * c.page_size + s < c.kv_lens[std::size_t(r)]) live.insert(page * c.page_size + s);
        }
      }
    }
    EXPECT_EQ(live.size(), 47U);
    for (std::int64_t slot = 0; slot < args.k_cache.size(0) * c.page_size; ++slot) {
      const double k =
          reference::element(args.k_cache, {slot / c.page_size, slot % c.page_size, 1, 3});
      EXPECT_EQ(std::isnan(k), live.count(slot) == 0) << slot;
    }
  }
}

TEST(CheckOutputs, SeesOneMissingKeyAndAnUnwrittenElement) {
  AttentionCase c;
  c.q_lens = {1};
  c.kv_lens = {300};
  AttentionBatch batch(c);
  PagedAttentionArgs args = batch.paged();
  const reference::AttentionResult want = reference::attention(args);
  const auto write = [&](const reference::AttentionResult& result) {
    for (std::int64_t i = 0; i < args.q.num_elements(); ++i) {
      args.out.data_as<float>()[i] = static_cast<float>(result.out[std::size_t(i)]);
    }
    for (std::int64_t i = 0; i < args.lse.num_elements(); ++i) {
      args.lse.data_as<float>()[i] = static_cast<float>(result.lse[std::size_t(i)]);
    }
  };
  write(want);
  EXPECT_EQ(check_outputs(args.out, args.lse, args.options, want, "right"), "");
  args.out.data_as<float>()[5] = NAN;
  EXPECT_NE(check_outputs(args.out, args.lse, args.options, want, "unwritten"), "");
  args.options.window = 299;
  write(reference::attention(args));
  EXPECT_NE(check_outputs(args.out, args.lse, args.options, want, "a key less"), "");
}

}  // namespace
}  // namespace hpcattn::testkit
