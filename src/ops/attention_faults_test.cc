// SPDX-License-Identifier: Apache-2.0
// Faults that attention libraries meet again and again, each by name. What is not here because
// other tests hold it: dead slots, padded rows and outputs are poison in every case of
// attention_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "hpcattn/error.h"
#include "src/cpu/reference/numbers.h"
#include "src/testing/attention_case_list.h"
#include "src/testing/attention_check.h"
#include "src/testing/attention_plan.h"
#include "src/testing/execution.h"

namespace hpcattn {
namespace {

using testkit::AttentionBatch;
using testkit::AttentionCase;
using testkit::GuardedTensor;
using testkit::Scales;
using testkit::with_threads;

/// Runs `args`, which may differ from the batch's own, and judges it.
std::string judge(AttentionBatch& batch, const PagedAttentionArgs& args, const std::string& label) {
  const reference::AttentionResult want = reference::attention(args);
  batch.reset_outputs();
  paged_attention(args, with_threads(2));
  std::string report = testkit::check_outputs(args.out, args.lse, args.options, want,
                                              label + " of " + to_string(batch.description()));
  return report.empty() ? batch.check_surroundings() : report;
}

TEST(AttentionFaults, ExpiredKeysBesideTheWindowsEdgeAreDead) {
  // The page of the window's edge holds tokens that no row sees; an engine may have given the pages
  // before it to another request, so their ids are anything.
  for (std::int32_t q_len : {1, 4, 20}) {
    for (std::int64_t window : {5, 16, 40, 64, 90}) {
      for (const testkit::DTypes& dtypes : testkit::all_dtypes()) {
        AttentionCase c;
        c.q_lens = {q_len};
        c.kv_lens = {150};
        c.window = window;
        c.lse = false;
        testkit::set_dtypes(c, dtypes);
        AttentionBatch batch(c);
        const PagedAttentionArgs args = batch.paged();
        const reference::AttentionResult want = reference::attention(args);
        const std::int64_t first_seen = std::max<std::int64_t>(0, 150 - q_len - window + 1);
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
        paged_attention(args);
        EXPECT_EQ(testkit::check_outputs(args.out, args.lse, args.options, want, to_string(c)), "");
      }
    }
  }
}

TEST(AttentionFaults, APageOfMinusOneIsNotPageZero) {
  for (std::int32_t q_len : {1, 30}) {
    AttentionCase c;
    c.q_lens = {q_len, 2};
    c.kv_lens = {100, 16};
    c.hole_share = 1.0;
    AttentionBatch batch(c);
    EXPECT_EQ(judge(batch, batch.paged(), "all missing"), "");
    EXPECT_EQ(reference::element(batch.out(), {0, 0, 0}), 0.0);
    EXPECT_EQ(reference::element(batch.lse(), {0, 0}), -std::numeric_limits<double>::infinity());
    c.sinks = DType::kFloat32;
    AttentionBatch with_sinks(c);
    const PagedAttentionArgs args = with_sinks.paged();
    EXPECT_EQ(judge(with_sinks, args, "all missing, sinks"), "");
    EXPECT_NEAR(reference::element(with_sinks.lse(), {0, 1}),
                reference::element(args.options.sinks, {1}), 1e-6);
  }
}

TEST(AttentionFaults, SplitsInWhichSomeRowsSeeNothing) {
  // Rows of one tile whose windows begin and end in different splits; a sink counts once, not a
  // split.
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
        AttentionBatch batch(c);
        PagedAttentionArgs args = batch.paged();
        const testkit::OwnedPlan plan = testkit::plan_for(args, 64);
        args.plan = plan;
        EXPECT_EQ(judge(batch, args, "fixed splits"), "");
      }
    }
  }
}

TEST(AttentionFaults, SplitsOfNoMultipleOfTheTileAndOfMissingPages) {
  for (std::int32_t kv_len : {65, 127, 129, 200, 321}) {
    for (double hole_share : {0.0, 0.5, 1.0}) {
      AttentionCase c;
      c.num_q_heads = 5;
      c.num_kv_heads = 1;
      c.q_lens = {1, 3};
      c.kv_lens = {kv_len, 70};
      c.hole_share = hole_share;
      c.page_size = 24;
      AttentionBatch batch(c);
      PagedAttentionArgs args = batch.paged();
      for (std::int64_t step : {64, 128}) {
        const testkit::OwnedPlan plan = testkit::plan_for(args, step);
        args.plan = plan;
        EXPECT_EQ(judge(batch, args, "splits of " + std::to_string(step)), "");
      }
    }
  }
}

TEST(AttentionFaults, AScaleIsLostOnNoPath) {
  // Prefix hit, decode, prefill; with and without LSE; split and not; pages and packed.
  for (const testkit::DTypes& dtypes : testkit::all_dtypes()) {
    if (!is_fp8(dtypes.kv)) continue;
    for (bool lse : {true, false}) {
      for (Scales kind : {Scales::kOne, Scales::kEach}) {
        AttentionCase c;
        c.q_lens = {1, 30, 12};
        c.kv_lens = {140, 30, 90};
        c.lse = lse;
        testkit::set_dtypes(c, dtypes, kind);
        AttentionBatch batch(c);
        EXPECT_EQ(testkit::run_and_check(batch), "");
        PagedAttentionArgs args = batch.paged();
        const testkit::OwnedPlan plan = testkit::plan_for(args, 64);
        args.plan = plan;
        EXPECT_EQ(judge(batch, args, "split"), "");
        EXPECT_GT(plan.summary.num_partials, 0);
      }
    }
  }
}

TEST(AttentionFaults, AQueryScaleOfZeroGivesUniformWeights) {
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
  paged_attention(args);
  EXPECT_EQ(testkit::check_outputs(args.out, args.lse, args.options, want, to_string(c)), "");
  EXPECT_NEAR(reference::element(batch.lse(), {0, 0}), std::log(20.0), 1e-6);
}

TEST(AttentionFaults, EveryFp8CodeOfKAndVIsReadAsItsOwnFormat) {
  // The codes 0x00 to 0x7e of e4m3 and the finite ones of e5m2 mean other numbers in the other
  // format.
  for (DType dtype : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    for (std::int32_t q_len : {1, 40}) {
      AttentionCase c;
      c.q_lens = {q_len};
      c.kv_lens = {128};
      c.causal = false;
      testkit::set_dtypes(c, {DType::kFloat32, dtype, DType::kFloat32}, Scales::kOne);
      AttentionBatch batch(c);
      const PackedAttentionArgs packed = batch.packed();
      for (std::int64_t j = 0; j < 128; ++j) {
        for (std::int64_t head = 0; head < c.num_kv_heads; ++head) {
          for (std::int64_t d = 0; d < c.head_dim; ++d) {
            const auto code = static_cast<std::uint32_t>((j * 2 + d * 7 + head * 131) % 256);
            const bool finite = std::isfinite(reference::decode(code, dtype));
            const std::int64_t at = (j * c.num_kv_heads + head) * c.head_dim + d;
            packed.v.data_as<std::uint8_t>()[at] = static_cast<std::uint8_t>(finite ? code : 0x3a);
          }
        }
      }
      batch.rename_pages(3);
      EXPECT_EQ(testkit::run_and_check(batch), "");
    }
  }
}

TEST(AttentionFaults, AnFp8OutputSaturates) {
  AttentionCase c;
  c.q_lens = {1, 20};
  c.kv_lens = {3, 30};
  testkit::set_dtypes(c, {DType::kBFloat16, DType::kBFloat16, DType::kFloat8E4M3});
  AttentionBatch batch(c);
  const PagedAttentionArgs args = batch.paged();
  reference::set_element(args.options.out_scale, {0}, 1e-4);
  const reference::AttentionResult want = reference::attention(args);
  paged_attention(args);
  EXPECT_EQ(testkit::check_outputs(args.out, args.lse, args.options, want, to_string(c)), "");
  int saturated = 0;
  for (std::int64_t d = 0; d < c.head_dim; ++d) {
    const double value = reference::element(batch.out(), {0, 0, d});
    ASSERT_FALSE(std::isnan(value));
    saturated += std::fabs(value) == 448.0 ? 1 : 0;
  }
  EXPECT_GT(saturated, 30);
}

TEST(AttentionFaults, ASinkOfMinusInfinityIsNoSink) {
  AttentionCase c;
  c.q_lens = {1, 12, 3};
  c.kv_lens = {20, 40, 0};
  c.sinks = DType::kFloat32;
  AttentionBatch batch(c);
  const PagedAttentionArgs args = batch.paged();
  for (std::int64_t head = 0; head < c.num_q_heads; ++head) {
    reference::set_element(args.options.sinks, {head}, head % 2 == 0 ? -INFINITY : 1e4);
  }
  const reference::AttentionResult want = reference::attention(args);
  paged_attention(args);
  EXPECT_EQ(testkit::check_outputs(args.out, args.lse, args.options, want, to_string(c)), "");
}

TEST(AttentionFaults, ShortPrefillsAreNoDecodes) {
  for (std::int32_t q_len = 1; q_len <= 12; ++q_len) {
    for (std::int32_t before : {0, 1, 63}) {
      AttentionCase c;
      c.q_lens = {q_len, 1, q_len};
      c.kv_lens = {q_len + before, 50, q_len};
      c.num_q_heads = 8;
      AttentionBatch batch(c);
      EXPECT_EQ(testkit::run_and_check(batch), "");
    }
  }
}

TEST(AttentionFaults, AKeyOfNanReachesOnlyTheRowsThatSeeIt) {
  // A later token's K is broken: a mask that adds -inf to the scores would let it reach earlier
  // rows.
  for (bool packed : {false, true}) {
    AttentionCase c;
    c.q_lens = {40};
    c.kv_lens = {100};
    c.lse = false;
    AttentionBatch batch(c);
    const reference::AttentionResult want = reference::attention(batch.paged());
    const PackedAttentionArgs packed_args = batch.packed();
    for (std::int64_t head = 0; head < c.num_kv_heads; ++head) {
      for (std::int64_t d = 0; d < c.head_dim; ++d) {
        reference::set_element(packed_args.k, {80, head, d}, std::nan(""));
      }
    }
    batch.rename_pages(9);
    if (packed) {
      packed_attention(packed_args);
    } else {
      paged_attention(batch.paged());
    }
    const std::int64_t unaware = 20;  // rows at the positions 60 to 79
    reference::AttentionResult first = want;
    const auto rows = static_cast<std::size_t>(unaware * c.num_q_heads);
    first.out.resize(rows * std::size_t(c.head_dim));
    first.lse.resize(rows);
    EXPECT_EQ(testkit::check_outputs(packed_args.out.slice(0, 0, unaware), {}, packed_args.options,
                                     first, packed ? "packed" : "paged"),
              "");
    EXPECT_TRUE(std::isnan(reference::element(batch.out(), {unaware, 0, 0})));
  }
}

TEST(AttentionFaults, OnePlanDoesNotServeUnlikeLayers) {
  AttentionCase c;
  c.q_lens = {1, 12};
  c.kv_lens = {20, 40};
  AttentionBatch batch(c);
  PagedAttentionArgs args = batch.paged();
  const testkit::OwnedPlan plan = testkit::plan_for(args, 0);
  args.plan = plan;
  EXPECT_EQ(judge(batch, args, "its own plan"), "");

  batch.reset_outputs();
  const std::vector<std::uint8_t> untouched = batch.out().bytes();
  const auto refused = [&](const PagedAttentionArgs& other, const std::string& text) {
    try {
      paged_attention(other);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
    EXPECT_EQ(batch.out().bytes(), untouched) << text;
  };
  PagedAttentionArgs other = args;
  other.options.window = 8;
  refused(other,
          "this call has 4:2 heads, head_dim 64, page 16, q float32, kv float32, causal, window 8");
  other = args;
  other.options.causal = false;
  refused(other, "bidirectional");
  other = args;
  other.q = args.q.slice(1, 0, 2);
  other.out = args.out.slice(1, 0, 2);
  other.lse = args.lse.slice(1, 0, 2);
  refused(other, "2:2 heads");
  other = args;
  const GuardedTensor other_lens = GuardedTensor::of_ints(std::vector<std::int32_t>{20, 39});
  other.kv_lens = other_lens;
  refused(other, "other lengths");
  other = args;
  const GuardedTensor other_ends = GuardedTensor::of_ints(std::vector<std::int32_t>{0, 2, 13});
  other.cu_seqlens_q = other_ends;
  refused(other, "other lengths");
  other = args;
  other.plan = plan.words.tensor().slice(0, 0, 10);
  refused(other, "holds no plan");
  other = args;
  GuardedTensor changed(DType::kInt32, {plan.words.tensor().size(0)});
  for (std::int64_t i = 0; i < changed.tensor().size(0); ++i) {
    changed.tensor().data_as<std::int32_t>()[i] = plan.words.tensor().data_as<std::int32_t>()[i];
  }
  changed.tensor().data_as<std::int32_t>()[30] ^= 4;
  other.plan = changed;
  refused(other, "changed since make_plan filled it");
  const GuardedTensor floats(DType::kFloat32, {500});
  other.plan = floats;
  refused(other, "plan has dtype float32, expected int32");
}

}  // namespace
}  // namespace hpcattn
