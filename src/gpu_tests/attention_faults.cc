// SPDX-License-Identifier: Apache-2.0
// Faults that attention kernels for GPUs meet again and again, each by name.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "src/cpu/reference/numbers.h"
#include "src/gpu_tests/attention_run.h"
#include "src/gpu_tests/expect.h"
#include "src/testing/compare.h"

namespace hpcattn {
namespace {

using testkit::AttentionBatch;
using testkit::AttentionCase;
using testkit::DTypes;
using testkit::GpuLane;
using testkit::PlanChoice;
using testkit::Scales;

constexpr DTypes kBf16 = {DType::kBFloat16, DType::kBFloat16, DType::kBFloat16};
constexpr DTypes kF16Fp8 = {DType::kFloat16, DType::kFloat8E4M3, DType::kFloat16};

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// As they are, and with splits of 64 tokens.
std::string run_whole_and_split(GpuLane& lane, const AttentionCase& c) {
  AttentionBatch batch(c);
  const PagedAttentionArgs args = batch.paged();
  const reference::AttentionResult want = reference::attention(args);
  std::string report = testkit::judge_on_gpu(lane, batch, args, want, "whole");
  for (std::int64_t step : {64, 128}) {
    if (!report.empty()) return report;
    const PlanChoice plan{.given = true, .fixed_split = step};
    report = testkit::judge_on_gpu(lane, batch, args, want, "splits", plan);
  }
  return report;
}

void expect_right(std::vector<AttentionCase> cases) {
  for (std::size_t i = 0; i < cases.size(); ++i) cases[i].seed = i + 1;
  testkit::expect_all_right(cases, run_whole_and_split);
}

/// The page of the window's edge holds tokens that no row sees; an engine may have given the pages
/// before it to another request, so their ids are anything.
std::string run_with_dead_tokens(GpuLane& lane, const AttentionCase& c) {
  AttentionBatch batch(c);
  const PagedAttentionArgs args = batch.paged();
  const reference::AttentionResult want = reference::attention(args);
  const std::int64_t first_seen =
      std::max<std::int64_t>(0, c.kv_lens[0] - c.q_lens[0] - *c.window + 1);
  for (std::int64_t j = 0; j < first_seen; ++j) {
    std::int32_t& page = args.page_table.data_as<std::int32_t>()[j / c.page_size];
    if ((j / c.page_size + 1) * c.page_size <= first_seen) {
      page = std::numeric_limits<std::int32_t>::max();
      continue;
    }
    for (std::int64_t head = 0; head < c.num_kv_heads; ++head) {
      for (std::int64_t d = 0; d < c.head_dim; ++d) {
        reference::set_element(args.k_cache, {page, j % c.page_size, head, d}, std::nan(""));
        reference::set_element(args.v_cache, {page, j % c.page_size, head, d}, std::nan(""));
      }
    }
  }
  std::string report = testkit::paged_on_gpu(lane, args);
  if (!report.empty()) return report;
  return testkit::check_outputs(args.out, args.lse, args.options, want, to_string(c),
                                testkit::gpu_arithmetic(args.q, args.k_cache, args.cu_seqlens_q));
}

TEST(GpuAttentionFaults, ExpiredKeysBesideTheWindowsEdgeAreDead) {
  std::vector<AttentionCase> cases;
  for (std::int32_t q_len : {1, 4, 20, 70}) {
    for (std::int64_t window : {5, 16, 40, 64, 90}) {
      for (const DTypes& dtypes : testkit::gpu_dtypes()) {
        AttentionCase c;
        c.q_lens = {q_len};
        c.kv_lens = {150};
        c.window = window;
        c.lse = false;
        testkit::set_dtypes(c, dtypes);
        cases.push_back(c);
      }
    }
  }
  testkit::expect_all_right(cases, run_with_dead_tokens);
}

TEST(GpuAttentionFaults, APageOfMinusOneIsNotPageZero) {
  std::vector<AttentionCase> cases;
  for (std::int32_t q_len : {1, 30}) {
    for (bool sinks : {false, true}) {
      AttentionCase c;
      c.q_lens = {q_len, 2};
      c.kv_lens = {100, 16};
      c.hole_share = 1.0;
      if (sinks) c.sinks = DType::kFloat32;
      testkit::set_dtypes(c, kBf16);
      cases.push_back(c);
    }
  }
  expect_right(cases);
}

TEST(GpuAttentionFaults, SplitsInWhichSomeRowsSeeNothing) {
  // Rows of one tile whose windows begin and end in different splits; a sink counts once.
  std::vector<AttentionCase> cases;
  for (std::int32_t q_len : {1, 3, 17, 70}) {
    for (std::int64_t window : {1, 33, 64, 100}) {
      for (std::int64_t group : {1, 3, 5}) {
        AttentionCase c;
        c.num_kv_heads = 2;
        c.num_q_heads = 2 * group;
        c.q_lens = {q_len, 2};
        c.kv_lens = {400, 1};
        c.window = window;
        c.sinks = DType::kFloat32;
        testkit::set_dtypes(c, kBf16);
        cases.push_back(c);
      }
    }
  }
  expect_right(cases);
}

TEST(GpuAttentionFaults, SplitsOfNoMultipleOfTheTileAndOfMissingPages) {
  std::vector<AttentionCase> cases;
  for (std::int32_t kv_len : {65, 127, 129, 200, 321}) {
    for (double hole_share : {0.0, 0.5, 1.0}) {
      AttentionCase c;
      c.num_q_heads = 5;
      c.num_kv_heads = 1;
      c.q_lens = {1, 3};
      c.kv_lens = {kv_len, 70};
      c.hole_share = hole_share;
      c.page_size = 24;
      testkit::set_dtypes(c, kBf16);
      cases.push_back(c);
    }
  }
  expect_right(cases);
}

TEST(GpuAttentionFaults, AScaleIsLostOnNoPath) {
  std::vector<AttentionCase> cases;
  for (const DTypes& dtypes : testkit::gpu_dtypes()) {
    if (!is_fp8(dtypes.kv)) continue;
    for (bool lse : {true, false}) {
      for (Scales kind : {Scales::kOne, Scales::kEach}) {
        AttentionCase c;
        c.q_lens = {1, 30, 12};
        c.kv_lens = {140, 30, 90};
        c.lse = lse;
        testkit::set_dtypes(c, dtypes, kind);
        cases.push_back(c);
      }
    }
  }
  expect_right(cases);
}

TEST(GpuAttentionFaults, ShortPrefillsAreNoDecodes) {
  std::vector<AttentionCase> cases;
  for (std::int32_t q_len = 1; q_len <= 12; ++q_len) {
    for (std::int32_t before : {0, 1, 63}) {
      AttentionCase c;
      c.q_lens = {q_len, 1, q_len};
      c.kv_lens = {q_len + before, 50, q_len};
      c.num_q_heads = 8;
      testkit::set_dtypes(c, kBf16);
      cases.push_back(c);
    }
  }
  expect_right(cases);
}

TEST(GpuAttentionFaults, EveryFp8CodeOfVIsReadAsItsOwnFormat) {
  for (DType dtype : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    for (DType q_dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat8E4M3}) {
      for (std::int32_t q_len : {1, 40}) {
        AttentionCase c;
        c.q_lens = {q_len};
        c.kv_lens = {128};
        c.causal = false;
        testkit::set_dtypes(c, {q_dtype, dtype, DType::kBFloat16}, Scales::kOne);
        if (q_dtype == DType::kFloat16) c.out_dtype = DType::kFloat16;
        AttentionBatch batch(c);
        const PackedAttentionArgs packed = batch.packed();
        for (std::int64_t at = 0; at < packed.v.num_elements(); ++at) {
          const std::int64_t d = at % c.head_dim, row = at / c.head_dim;
          const auto code = static_cast<std::uint32_t>((row * 66 + d * 7) % 256);
          const bool finite = std::isfinite(reference::decode(code, dtype));
          // The largest of e5m2 would leave float16's range as a sum.
          const bool small = std::fabs(reference::decode(code, dtype)) <= 448.0;
          packed.v.data_as<std::uint8_t>()[at] =
              static_cast<std::uint8_t>(finite && small ? code : 0x3a);
        }
        batch.rename_pages(3);
        const PagedAttentionArgs args = batch.paged();
        EXPECT_EQ(testkit::judge_on_gpu(testkit::main_lane(), batch, args,
                                        reference::attention(args), "codes"),
                  "");
      }
    }
  }
}

TEST(GpuAttentionFaults, AnFp8OutputSaturates) {
  AttentionCase c;
  c.q_lens = {1, 20};
  c.kv_lens = {3, 30};
  testkit::set_dtypes(c, {DType::kBFloat16, DType::kBFloat16, DType::kFloat8E4M3});
  AttentionBatch batch(c);
  const PagedAttentionArgs args = batch.paged();
  reference::set_element(args.options.out_scale, {0}, 1e-4);
  const reference::AttentionResult want = reference::attention(args);
  EXPECT_EQ(testkit::paged_on_gpu(testkit::main_lane(), args), "");
  EXPECT_EQ(
      testkit::check_outputs(args.out, args.lse, args.options, want, to_string(c),
                             testkit::gpu_arithmetic(args.q, args.k_cache, args.cu_seqlens_q)),
      "");
  int saturated = 0;
  for (std::int64_t d = 0; d < c.head_dim; ++d) {
    saturated += std::fabs(reference::element(batch.out(), {0, 0, d})) == 448.0 ? 1 : 0;
  }
  EXPECT_GT(saturated, 30);
}

TEST(GpuAttentionFaults, ASinkOfMinusInfinityIsNoSink) {
  AttentionCase c;
  c.q_lens = {1, 12, 3};
  c.kv_lens = {20, 40, 0};
  c.sinks = DType::kFloat32;
  testkit::set_dtypes(c, kBf16);
  AttentionBatch batch(c);
  const PagedAttentionArgs args = batch.paged();
  for (std::int64_t head = 0; head < c.num_q_heads; ++head) {
    reference::set_element(args.options.sinks, {head}, head % 2 == 0 ? -kInfinity : 1e4);
  }
  const reference::AttentionResult want = reference::attention(args);
  EXPECT_EQ(testkit::paged_on_gpu(testkit::main_lane(), args), "");
  EXPECT_EQ(
      testkit::check_outputs(args.out, args.lse, args.options, want, to_string(c),
                             testkit::gpu_arithmetic(args.q, args.k_cache, args.cu_seqlens_q)),
      "");
}

TEST(GpuAttentionFaults, AQueryScaleOfZeroGivesUniformWeights) {
  AttentionCase c;
  c.q_lens = {1, 12};
  c.kv_lens = {20, 40};
  testkit::set_dtypes(c, {DType::kFloat8E4M3, DType::kFloat8E4M3, DType::kFloat32}, Scales::kEach);
  AttentionBatch batch(c);
  const PagedAttentionArgs args = batch.paged();
  for (std::int64_t head = 0; head < c.num_q_heads; ++head) {
    reference::set_element(args.options.q_scale, {0, head}, 0.0);
  }
  const reference::AttentionResult want = reference::attention(args);
  EXPECT_EQ(testkit::paged_on_gpu(testkit::main_lane(), args), "");
  EXPECT_EQ(
      testkit::check_outputs(args.out, args.lse, args.options, want, to_string(c),
                             testkit::gpu_arithmetic(args.q, args.k_cache, args.cu_seqlens_q)),
      "");
}

TEST(GpuAttentionFaults, AKeyOfNanReachesOnlyTheRowsThatSeeIt) {
  // A later token's K is broken: a mask that adds -inf to the scores would let it reach earlier
  // rows. Not with a bfloat16 q and float8 KV: widening to bfloat16 takes a NaN code for a number
  // (kernels/ptx/math.h).
  for (const DTypes& dtypes : {kBf16, kF16Fp8}) {
    AttentionCase c;
    c.q_lens = {40};
    c.kv_lens = {100};
    c.lse = false;
    testkit::set_dtypes(c, dtypes);
    AttentionBatch batch(c);
    const reference::AttentionResult want = reference::attention(batch.paged());
    const PackedAttentionArgs packed = batch.packed();
    for (std::int64_t head = 0; head < c.num_kv_heads; ++head) {
      for (std::int64_t d = 0; d < c.head_dim; ++d) {
        reference::set_element(packed.k, {80, head, d}, std::nan(""));
      }
    }
    batch.rename_pages(9);
    EXPECT_EQ(testkit::paged_on_gpu(testkit::main_lane(), batch.paged()), "");
    const std::int64_t unaware = 20;  // rows at the positions 60 to 79
    reference::AttentionResult first = want;
    const auto rows = static_cast<std::size_t>(unaware * c.num_q_heads);
    first.out.resize(rows * std::size_t(c.head_dim));
    first.lse.resize(rows);
    EXPECT_EQ(testkit::check_outputs(
                  packed.out.slice(0, 0, unaware), {}, packed.options, first, "unaware rows",
                  testkit::gpu_arithmetic(packed.q, packed.k, packed.cu_seqlens_q)),
              "");
    EXPECT_TRUE(std::isnan(reference::element(batch.out(), {unaware, 0, 0})));
  }
}

}  // namespace
}  // namespace hpcattn
