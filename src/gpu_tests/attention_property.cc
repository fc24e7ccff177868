// SPDX-License-Identifier: Apache-2.0
// What must hold of attention on the GPU whatever the numbers are.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "hpcattn/counters.h"
#include "src/cpu/reference/numbers.h"
#include "src/cuda/attention.h"
#include "src/cuda/device.h"
#include "src/gpu_tests/attention_run.h"
#include "src/gpu_tests/expect.h"
#include "src/testing/attention_subset.h"
#include "src/testing/compare.h"

namespace hpcattn {
namespace {

using testkit::AttentionBatch;
using testkit::AttentionCase;
using testkit::AttentionSubset;
using testkit::DTypes;
using testkit::GpuLane;
using testkit::GuardedTensor;
using testkit::PlanChoice;

constexpr DTypes kBf16 = {DType::kBFloat16, DType::kBFloat16, DType::kBFloat16};
constexpr DTypes kF16 = {DType::kFloat16, DType::kFloat16, DType::kFloat16};
constexpr DTypes kBf16Fp8 = {DType::kBFloat16, DType::kFloat8E4M3, DType::kBFloat16};
constexpr DTypes kFp8 = {DType::kFloat8E4M3, DType::kFloat8E4M3, DType::kBFloat16};

std::vector<AttentionCase> random_cases(std::uint64_t count) {
  std::vector<AttentionCase> cases;
  for (std::uint64_t seed = 1; seed <= count; ++seed) {
    cases.push_back(testkit::gpu_random_case(seed));
  }
  return cases;
}

/// Both outputs, all bytes.
std::vector<std::uint8_t> bits(const AttentionBatch& batch) {
  std::vector<std::uint8_t> all = batch.out().bytes();
  const std::vector<std::uint8_t> lse = batch.lse().bytes();
  all.insert(all.end(), lse.begin(), lse.end());
  return all;
}

std::string unless_equal(const AttentionBatch& batch, const std::vector<std::uint8_t>& want,
                         const std::string& what) {
  return bits(batch) == want ? "" : what + " changes bits: " + to_string(batch.description());
}

TEST(GpuAttentionProperty, AThousandReplaysAgreeBitForBit) {
  constexpr int kReplays = 1000;
  std::vector<AttentionCase> cases;
  for (const DTypes& dtypes : {kBf16, kF16, kBf16Fp8, kFp8}) {
    for (bool decode : {true, false}) {
      AttentionCase c;
      c.name = "repeated";
      c.seed = cases.size() + 1;
      c.head_dim = 128;
      c.num_q_heads = 8;
      c.q_lens = decode ? std::vector<std::int32_t>{1, 1, 2} : std::vector{40, 1, 90};
      c.kv_lens = {3000, 700, 90};
      testkit::set_dtypes(c, dtypes);
      cases.push_back(c);
    }
  }
  const auto run = [](GpuLane& lane, const AttentionCase& c) {
    AttentionBatch batch(c);
    std::string report;
    const std::string around = testkit::call_on_gpu(
        lane, batch.paged(), [&](const PagedAttentionArgs& a, const Execution& execution) {
          const auto bytes = batch.out().buffer().size();
          std::vector<std::uint8_t> first(bytes), now(bytes);
          paged_attention(a, execution);
          lane.stream.download(first.data(), a.out.data(), bytes);
          const testkit::GpuGraph graph(lane.stream,
                                        [&](const Execution& e) { paged_attention(a, e); });
          for (int i = 0; i < kReplays && report.empty(); ++i) {
            lane.stream.fill(a.out.data(), 0xff, bytes);
            graph.replay(lane.stream);
            lane.stream.download(now.data(), a.out.data(), bytes);
            if (now != first) {
              report =
                  "replay " + std::to_string(i) + " has other bits than a call: " + to_string(c);
            }
          }
        });
    return report.empty() ? around : report;
  };
  testkit::expect_all_right(cases, run);
}

TEST(GpuAttentionProperty, RenamingPagesChangesNoBit) {
  const auto run = [](GpuLane& lane, const AttentionCase& c) {
    AttentionBatch batch(c);
    std::string report = testkit::paged_on_gpu(lane, batch.paged());
    const std::vector<std::uint8_t> first = bits(batch);
    batch.rename_pages(c.seed + 1000);
    batch.reset_outputs();
    report += testkit::paged_on_gpu(lane, batch.paged());
    return report + unless_equal(batch, first, "renaming pages");
  };
  testkit::expect_all_right(random_cases(60), run);
}

/// Also where a call needs no plan at all. Rows of padding count where the host chooses a kernel,
/// and not in a plan: where they make it choose the prefill kernel, bits may differ.
TEST(GpuAttentionProperty, APlanOfTheCallGivesTheBitsOfOneThatIsGiven) {
  const auto run = [](GpuLane& lane, AttentionCase c) {
    const std::int64_t live = std::accumulate(c.q_lens.begin(), c.q_lens.end(), std::int64_t{0});
    const auto rows = [&](std::int64_t tokens) {
      return cuda::rows_of_request(tokens, c.num_q_heads / c.num_kv_heads,
                                   static_cast<std::int64_t>(c.q_lens.size()));
    };
    if (rows(live) <= cuda::kMostDecodeRows &&
        rows(live + c.padding_tokens) > cuda::kMostDecodeRows) {
      c.padding_tokens = 0;
    }
    c.kv_lens[0] += 2000;
    AttentionBatch batch(c);
    std::string report = testkit::paged_on_gpu(lane, batch.paged());
    const std::vector<std::uint8_t> first = bits(batch);
    batch.reset_outputs();
    report += testkit::paged_on_gpu(lane, batch.paged(), {.given = true});
    return report + unless_equal(batch, first, "a given plan");
  };
  testkit::expect_all_right(random_cases(30), run);
}

/// No launch for it: its tiles are whole, and the prefill kernel finds them from the lengths.
TEST(GpuAttentionProperty, APromptNeedsNoPlan) {
  if (!cuda::arch_of(cuda::device_info(0)).starts_with("sm_90")) {
    GTEST_SKIP() << "needs a GPU of sm_90: no other has the prefill kernel";
  }
  AttentionCase c;
  c.head_dim = 128;
  c.q_lens = {700, 0, 90};
  c.kv_lens = {700, 9, 200};
  testkit::set_dtypes(c, kBf16);
  const AttentionBatch batch(c);
  const auto before = counters();
  EXPECT_EQ(testkit::paged_on_gpu(testkit::main_lane(), batch.paged()), "");
  const auto after = counters();
  const auto more = [&](const std::string& name) {
    const auto count = [&](const auto& all) { return all.contains(name) ? all.at(name) : 0; };
    return count(after) - count(before);
  };
  EXPECT_EQ(more("cuda/plan"), 0);
  EXPECT_EQ(more(cuda::kPrefillName), 1);
}

TEST(GpuAttentionProperty, FixedSplitsMakeARequestIndependentOfItsBatch) {
  const auto run = [](GpuLane& lane, AttentionCase c) {
    c.kv_lens.front() += 500;
    c.q_lens.back() += 1;
    c.kv_lens.back() += 1;
    const AttentionBatch batch(c);
    const PagedAttentionArgs whole = batch.paged();
    const PlanChoice plan{.given = true, .fixed_split = 64 << (c.seed % 3)};
    std::string report = testkit::paged_on_gpu(lane, whole, plan);
    for (std::int64_t request = 0; report.empty() && request < whole.kv_lens.size(0); ++request) {
      const AttentionSubset alone(whole, {request});
      report = testkit::paged_on_gpu(lane, alone.args(), plan);
      if (report.empty()) {
        report = alone.compare_bits_with_whole("request " + std::to_string(request) + " alone of " +
                                               to_string(c));
      }
    }
    return report;
  };
  testkit::expect_all_right(random_cases(60), run);
}

TEST(GpuAttentionProperty, AnySplitIsWithinToleranceOfTheReference) {
  const auto run = [](GpuLane& lane, AttentionCase c) {
    c.kv_lens.front() += 333;
    AttentionBatch batch(c);
    const PagedAttentionArgs args = batch.paged();
    const reference::AttentionResult want = reference::attention(args);
    std::string report;
    for (std::int64_t step : {64, 128, 192, 320, 100 * 64}) {
      const PlanChoice plan{.given = true, .fixed_split = step};
      if (report.empty()) report = testkit::judge_on_gpu(lane, batch, args, want, "split", plan);
    }
    return report;
  };
  testkit::expect_all_right(random_cases(60), run);
}

TEST(GpuAttentionProperty, AWindowLongerThanTheSequenceEqualsNone) {
  const auto run = [](GpuLane& lane, AttentionCase c) {
    c.window = 1000;
    AttentionBatch batch(c);
    PagedAttentionArgs args = batch.paged();
    std::string report = testkit::paged_on_gpu(lane, args);
    const std::vector<std::uint8_t> first = bits(batch);
    for (std::int64_t window : {std::int64_t{1} << 31, std::int64_t{1} << 32, std::int64_t{1} << 62,
                                std::numeric_limits<std::int64_t>::max()}) {
      args.options.window = window;
      batch.reset_outputs();
      report += testkit::paged_on_gpu(lane, args);
      report += unless_equal(batch, first, "a window of " + std::to_string(window));
    }
    return report;
  };
  testkit::expect_all_right(random_cases(30), run);
}

TEST(GpuAttentionProperty, OneKeyReturnsItsV) {
  for (std::int64_t head_dim : {64, 80, 256}) {
    for (const DTypes& dtypes : {kF16, kBf16}) {
      AttentionCase c;
      c.q_lens = {1, 1, 5};
      c.kv_lens = {1, 90, 70};
      c.window = 1;  // of 90 and 70 keys each row sees its own
      c.head_dim = head_dim;
      testkit::set_dtypes(c, dtypes);
      const AttentionBatch batch(c);
      ASSERT_EQ(testkit::paged_on_gpu(testkit::main_lane(), batch.paged()), "");
      const Tensor& v = batch.packed().v;
      const std::vector<std::int64_t> key_of_token = {0, 90, 156, 157, 158, 159, 160};
      for (std::int64_t token = 0; token < 7; ++token) {
        for (std::int64_t head = 0; head < c.num_q_heads; ++head) {
          for (std::int64_t d = 0; d < head_dim; ++d) {
            ASSERT_EQ(reference::element(batch.out(), {token, head, d}),
                      reference::element(v, {key_of_token[std::size_t(token)], head / 2, d}))
                << token << ' ' << head << ' ' << d << ' ' << name(dtypes.q);
          }
        }
      }
    }
  }
}

TEST(GpuAttentionProperty, HugeScoresStillSumToOne) {
  for (double score : {-1e6, 1e6}) {
    for (std::int32_t q_len : {1, 20}) {
      AttentionCase c;
      c.q_lens = {q_len};
      c.kv_lens = {200};
      testkit::set_dtypes(c, kBf16);
      AttentionBatch batch(c);
      PagedAttentionArgs args = batch.paged();
      const double root = std::exp2(std::round(std::log2(std::fabs(score) / 64.0) / 2.0));
      const auto fill = [](const Tensor& tensor, double value) {
        testkit::for_each_index(tensor, [&](const std::vector<std::int64_t>& i, std::int64_t) {
          reference::set_element(tensor, {i[0], i[1], i[2]}, value);
        });
      };
      const PackedAttentionArgs packed = batch.packed();
      fill(packed.q, root);
      fill(packed.k, std::copysign(root, score));
      fill(packed.v, 1.0);
      batch.rename_pages(5);
      args.options.scale = 1.0;
      ASSERT_EQ(testkit::paged_on_gpu(testkit::main_lane(), args), "");
      const std::vector<double> want(std::size_t(q_len * c.num_q_heads * c.head_dim), 1.0);
      EXPECT_EQ(testkit::compare(args.out.slice(0, 0, q_len), want,
                                 std::vector<double>(want.size(), 1.0 / 256.0), "out"),
                "")
          << score << ' ' << q_len;
      const double exact = std::copysign(root * root * 64.0, score);
      EXPECT_NEAR(reference::element(args.lse, {0, 0}), exact + std::log(200.0 - q_len + 1.0),
                  1e-5 * std::fabs(exact));
    }
  }
}

}  // namespace
}  // namespace hpcattn
