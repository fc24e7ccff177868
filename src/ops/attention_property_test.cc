// SPDX-License-Identifier: Apache-2.0
// What must hold of attention whatever the numbers are.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "src/cpu/reference/numbers.h"
#include "src/testing/attention_case_list.h"
#include "src/testing/attention_check.h"
#include "src/testing/attention_plan.h"
#include "src/testing/attention_subset.h"
#include "src/testing/compare.h"
#include "src/testing/execution.h"

namespace hpcattn {
namespace {

using testkit::AttentionBatch;
using testkit::AttentionCase;
using testkit::AttentionSubset;
using testkit::GuardedTensor;
using testkit::with_threads;

constexpr std::uint64_t kSeeds = 40 / testkit::kCaseStep;

TEST(AttentionProperty, RenamingPagesChangesNoBit) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    AttentionBatch batch(testkit::random_case(seed));
    paged_attention(batch.paged(), with_threads(2));
    const std::vector<std::uint8_t> out = batch.out().bytes();
    const std::vector<std::uint8_t> lse = batch.lse().bytes();
    batch.rename_pages(seed + 1000);
    batch.reset_outputs();
    paged_attention(batch.paged(), with_threads(2));
    EXPECT_EQ(batch.out().bytes(), out) << to_string(batch.description());
    EXPECT_EQ(batch.lse().bytes(), lse) << to_string(batch.description());
  }
}

TEST(AttentionProperty, TwoRunsAgreeBitForBit) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    AttentionCase c = testkit::random_case(seed);
    c.kv_lens[0] += 600;  // long enough to be split among threads
    AttentionBatch batch(c);
    PagedAttentionArgs args = batch.paged();
    const testkit::OwnedPlan plan = testkit::plan_for(args, 0, 4);
    std::vector<std::uint8_t> out;
    for (int threads : {4, 4, 1, 3}) {  // the plan fixes the bits, not who carries it out
      batch.reset_outputs();
      args.plan = plan;
      paged_attention(args, with_threads(threads));
      if (out.empty()) out = batch.out().bytes();
      EXPECT_EQ(batch.out().bytes(), out) << threads << " threads, " << to_string(c);
    }
    batch.reset_outputs();
    args.plan = {};
    paged_attention(args, with_threads(4));
    EXPECT_EQ(batch.out().bytes(), out) << "plan made in the call, " << to_string(c);
  }
}

TEST(AttentionProperty, PermutingRequestsChangesNoBit) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const AttentionBatch batch(testkit::random_case(seed));
    const PagedAttentionArgs whole = batch.paged();
    std::vector<std::int64_t> order(static_cast<std::size_t>(whole.kv_lens.size(0)));
    std::iota(order.begin(), order.end(), 0);
    testkit::Rng(seed).shuffle(order);
    paged_attention(whole, with_threads(1));
    const AttentionSubset permuted(whole, order);
    paged_attention(permuted.args(), with_threads(1));
    EXPECT_EQ(permuted.compare_bits_with_whole(to_string(batch.description())), "");
  }
}

TEST(AttentionProperty, FixedSplitsMakeARequestIndependentOfItsBatch) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    AttentionCase c = testkit::random_case(seed);
    c.kv_lens.front() += 500;
    c.q_lens.back() += 1;
    c.kv_lens.back() += 1;
    const AttentionBatch batch(c);
    PagedAttentionArgs whole = batch.paged();
    const std::int64_t step = 64 << (seed % 3);
    const testkit::OwnedPlan plan = testkit::plan_for(whole, step, 4);
    whole.plan = plan;
    paged_attention(whole, with_threads(3));
    for (std::int64_t request = 0; request < whole.kv_lens.size(0); ++request) {
      const AttentionSubset alone(whole, {request});
      PagedAttentionArgs args = alone.args();
      const testkit::OwnedPlan plan_alone = testkit::plan_for(args, step, 1);
      args.plan = plan_alone;
      paged_attention(args, with_threads(1));
      EXPECT_EQ(alone.compare_bits_with_whole("request " + std::to_string(request) + " alone of " +
                                              to_string(c)),
                "");
    }
  }
}

TEST(AttentionProperty, AnySplitIsWithinToleranceOfTheReference) {
  std::int64_t num_partials = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    AttentionCase c = testkit::random_case(seed);
    c.kv_lens.front() += 333;
    AttentionBatch batch(c);
    PagedAttentionArgs args = batch.paged();
    const reference::AttentionResult want = reference::attention(args);
    for (std::int64_t step : {64, 128, 192, 320, 100 * 64}) {
      const testkit::OwnedPlan plan = testkit::plan_for(args, step, 2);
      num_partials += plan.summary.num_partials;
      args.plan = plan;
      batch.reset_outputs();
      paged_attention(args, with_threads(2));
      const std::string label = "split " + std::to_string(step) + " of " + to_string(c);
      EXPECT_EQ(testkit::check_outputs(args.out, args.lse, args.options, want, label), "");
      EXPECT_EQ(batch.check_surroundings(), "") << label;
      EXPECT_TRUE(plan.words.surroundings_intact()) << label;
    }
  }
  EXPECT_GT(num_partials, 8 * static_cast<std::int64_t>(kSeeds));  // splits did happen
}

TEST(AttentionProperty, AWindowLongerThanTheSequenceEqualsNone) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    AttentionCase c = testkit::random_case(seed);
    c.window.reset();
    AttentionBatch batch(c);
    paged_attention(batch.paged(), with_threads(1));
    const std::vector<std::uint8_t> out = batch.out().bytes();
    for (std::int64_t window : {std::int64_t{1000}, std::int64_t{1} << 31, std::int64_t{1} << 62,
                                std::numeric_limits<std::int64_t>::max()}) {
      batch.reset_outputs();
      PagedAttentionArgs args = batch.paged();
      args.options.window = window;
      paged_attention(args, with_threads(1));
      EXPECT_EQ(batch.out().bytes(), out) << window << ' ' << to_string(c);
    }
  }
}

TEST(AttentionProperty, OneKeyReturnsItsV) {
  for (std::int64_t head_dim : {64, 80, 256}) {
    for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      AttentionCase c;
      c.q_lens = {1, 1, 5};
      c.kv_lens = {1, 90, 70};
      c.window = 1;  // of 90 and 70 keys each row sees its own
      c.head_dim = head_dim;
      testkit::set_dtypes(c, {dtype, dtype, dtype});
      const AttentionBatch batch(c);
      paged_attention(batch.paged());
      const Tensor& v = batch.packed().v;
      const std::vector<std::int64_t> key_of_token = {0, 90, 156, 157, 158, 159, 160};
      for (std::int64_t token = 0; token < 7; ++token) {
        for (std::int64_t head = 0; head < c.num_q_heads; ++head) {
          for (std::int64_t d = 0; d < head_dim; ++d) {
            ASSERT_EQ(reference::element(batch.out(), {token, head, d}),
                      reference::element(v, {key_of_token[std::size_t(token)], head / 2, d}))
                << token << ' ' << head << ' ' << d << ' ' << name(dtype);
          }
        }
      }
    }
  }
}

TEST(AttentionProperty, ChunksEqualOnePass) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    AttentionCase c = testkit::random_case(seed);
    c.q_lens = {75};
    c.kv_lens = {75};
    c.causal = true;
    c.hole_share = 0.0;
    c.padding_tokens = 0;
    if (c.num_q_heads * c.head_dim > 1500) continue;
    AttentionBatch batch(c);
    const PagedAttentionArgs whole = batch.paged();
    const reference::AttentionResult want = reference::attention(whole);
    for (std::int64_t chunk : {1, 7, 32, 74}) {
      batch.reset_outputs();
      for (std::int64_t begin = 0; begin < 75; begin += chunk) {
        const std::int64_t length = std::min<std::int64_t>(chunk, 75 - begin);
        PagedAttentionArgs args = whole;
        args.q = whole.q.slice(0, begin, length);
        args.out = whole.out.slice(0, begin, length);
        if (args.lse.defined()) args.lse = whole.lse.slice(0, begin, length);
        if (args.options.q_scale.defined() && args.options.q_scale.rank() == 2) {
          args.options.q_scale = args.options.q_scale.slice(0, begin, length);
        }
        const GuardedTensor cu =
            GuardedTensor::of_ints(std::vector<std::int32_t>{0, static_cast<std::int32_t>(length)});
        const GuardedTensor kv_len = GuardedTensor::of_ints(
            std::vector<std::int32_t>{static_cast<std::int32_t>(begin + length)});
        args.cu_seqlens_q = cu;
        args.kv_lens = kv_len;
        paged_attention(args, with_threads(2));
      }
      const std::string label = "chunks of " + std::to_string(chunk) + " of " + to_string(c);
      EXPECT_EQ(testkit::check_outputs(whole.out, whole.lse, whole.options, want, label), "");
    }
  }
}

TEST(AttentionProperty, HugeScoresStillSumToOne) {
  for (double score : {-1e6, 1e6, -1e30, 1e30}) {
    for (std::int32_t q_len : {1, 20}) {
      AttentionCase c;
      c.q_lens = {q_len};
      c.kv_lens = {200};
      AttentionBatch batch(c);
      PagedAttentionArgs args = batch.paged();
      const double root = std::sqrt(std::fabs(score) / 64.0);
      const auto fill = [](const Tensor& tensor, double value) {
        testkit::for_each_index(tensor, [&](const std::vector<std::int64_t>& i, std::int64_t) {
          reference::set_element(tensor, {i[0], i[1], i[2]}, value);
        });
      };
      PackedAttentionArgs packed = batch.packed();
      packed.options.scale = 1.0;
      fill(packed.q, root);
      fill(packed.k, std::copysign(root, score));
      fill(packed.v, 1.0);
      batch.rename_pages(5);
      args.options.scale = 1.0;
      for (bool paged : {true, false}) {
        batch.reset_outputs();
        if (paged) {
          paged_attention(args);
        } else {
          packed_attention(packed);
        }
        const std::vector<double> want(std::size_t(q_len * c.num_q_heads * c.head_dim), 1.0);
        EXPECT_EQ(testkit::compare(args.out.slice(0, 0, q_len), want,
                                   std::vector<double>(want.size(), 2e-6), "out"),
                  "")
            << score << ' ' << q_len;
        for (std::int64_t head = 0; head < c.num_q_heads; ++head) {
          EXPECT_NEAR(reference::element(args.lse, {0, head}), score, 1e-5 * std::fabs(score));
        }
      }
    }
  }
}

}  // namespace
}  // namespace hpcattn
