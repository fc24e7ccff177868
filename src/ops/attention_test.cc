// SPDX-License-Identifier: Apache-2.0
// Attention against the float64 reference: every feature with every dtype, every shape.
#include "hpcattn/attention.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "src/testing/attention_case_list.h"
#include "src/testing/attention_check.h"
#include "src/testing/execution.h"

namespace hpcattn {
namespace {

using testkit::AttentionBatch;
using testkit::AttentionCase;
using testkit::KvLayout;

/// Threads differ from case to case: plans, and so splits, follow their number.
void expect_right(const AttentionCase& c) {
  AttentionBatch batch(c);
  const std::string report =
      testkit::run_and_check(batch, testkit::with_threads(1 + static_cast<int>(c.seed % 4)));
  EXPECT_TRUE(report.empty()) << report;
}

/// Decode, speculative rows, chunked prefill, prefill and two empty requests in one call.
AttentionCase mixed_case() {
  AttentionCase c;
  c.q_lens = {1, 4, 0, 9, 13, 1, 2};
  c.kv_lens = {70, 4, 5, 33, 131, 1, 0};
  return c;
}

TEST(Attention, EveryFeatureWithEveryDtype) {
  std::uint64_t seed = 1;
  for (const testkit::DTypes& dtypes : testkit::all_dtypes()) {
    for (const testkit::Feature& feature : testkit::all_features()) {
      AttentionCase c = mixed_case();
      c.name = feature.name;
      c.seed = seed++;
      if (c.seed % testkit::kCaseStep != 0) continue;
      testkit::set_dtypes(c, dtypes);
      feature.apply(c);
      expect_right(c);
    }
  }
}

TEST(Attention, EveryHeadDimAndGroup) {
  std::uint64_t seed = 1;
  for (std::int64_t head_dim : {64, 80, 96, 128, 192, 256}) {
    for (std::int64_t group : {1, 2, 3, 4, 5, 8, 16}) {
      for (const testkit::DTypes& dtypes :
           {testkit::all_dtypes()[0], testkit::all_dtypes()[12], testkit::all_dtypes()[20]}) {
        AttentionCase c;
        c.name = "head dim and group";
        c.seed = seed++;
        if (c.seed % testkit::kCaseStep != 0) continue;
        c.head_dim = head_dim;
        c.num_kv_heads = 2;
        c.num_q_heads = 2 * group;
        c.q_lens = {1, 3, 7};
        c.kv_lens = {97, 40, 66};
        c.window = seed % 3 == 0 ? std::optional<std::int64_t>(31) : std::nullopt;
        testkit::set_dtypes(c, dtypes);
        expect_right(c);
      }
    }
  }
}

TEST(Attention, EveryPageSizeAndLayout) {
  std::uint64_t seed = 1;
  for (std::int64_t page_size : {8, 16, 24, 32, 64, 128, 256}) {
    for (KvLayout layout : {KvLayout::kNhd, KvLayout::kHnd, KvLayout::kHalves,
                            KvLayout::kInterleaved, KvLayout::kMixed}) {
      for (const testkit::DTypes& dtypes :
           {testkit::all_dtypes()[0], testkit::all_dtypes()[6], testkit::all_dtypes()[14]}) {
        AttentionCase c = mixed_case();
        c.name = "page size and layout";
        c.seed = seed++;
        c.page_size = page_size;
        c.layout = layout;
        c.kv_lens[0] =
            static_cast<std::int32_t>(page_size + static_cast<std::int64_t>(seed % 3) - 1);
        testkit::set_dtypes(c, dtypes);
        expect_right(c);
      }
    }
  }
}

TEST(Attention, LengthsAtTheEdgesOfPagesAndTiles) {
  std::uint64_t seed = 1;
  for (std::int32_t kv_len : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 192, 193, 257}) {
    for (std::int32_t q_len : {1, 2, 7, 8, 9, 31, 32, 33, 47, 48, 49}) {
      AttentionCase c;
      c.name = "edges";
      c.seed = seed++;
      c.num_q_heads = 2;  // rows in tiles of 96: 47, 48 and 49 tokens of two heads
      c.num_kv_heads = 1;
      c.q_lens = {std::min(q_len, kv_len)};
      c.kv_lens = {kv_len};
      c.window = seed % 2 == 0 ? std::optional<std::int64_t>(64) : std::nullopt;
      expect_right(c);
    }
  }
}

struct BatchKind {
  const char* name;
  std::vector<std::int32_t> q_lens;
  std::vector<std::int32_t> kv_lens;
};

TEST(Attention, EveryKindOfBatch) {
  const std::vector<BatchKind> kinds = {
      {"one decode", {1}, {300}},
      {"decode", {1, 1, 1, 1, 1, 1, 1, 1}, {5, 17, 64, 128, 1, 250, 33, 16}},
      {"uniform speculation", {4, 4, 4}, {20, 64, 131}},
      {"ragged speculation", {1, 5, 2, 3}, {20, 64, 131, 3}},
      {"prefill", {64, 17, 1}, {64, 17, 1}},
      {"chunked prefill", {40, 33}, {100, 161}},
      {"a final chunk of one token", {1, 1}, {129, 65}},
      {"prefill of one token", {1}, {1}},
      {"mixed", {1, 50, 3, 0, 1}, {90, 50, 77, 12, 200}},
      {"empty requests between", {0, 2, 0, 0, 1, 0}, {0, 30, 10, 0, 41, 7}},
      {"only empty requests", {0, 0}, {5, 0}},
      {"no requests", {}, {}},
      {"more query than KV tokens", {5, 3, 2}, {2, 0, 2}},
      {"one long among short", {1, 1, 1, 1}, {1500, 20, 30, 10}},
  };
  std::uint64_t seed = 1;
  for (const BatchKind& kind : kinds) {
    for (const testkit::Feature& feature : testkit::all_features()) {
      for (std::int64_t group : {1, 3, 8}) {
        AttentionCase c;
        c.name = std::string(kind.name) + ", " + feature.name;
        c.seed = seed++;
        if (c.seed % testkit::kCaseStep != 0) continue;
        c.q_lens = kind.q_lens;
        c.kv_lens = kind.kv_lens;
        c.num_kv_heads = 1;
        c.num_q_heads = group;
        feature.apply(c);
        expect_right(c);
      }
    }
  }
}

TEST(Attention, RandomCases) {
  for (std::uint64_t seed = 1; seed <= 400 / testkit::kCaseStep; ++seed) {
    expect_right(testkit::random_case(seed));
  }
}

TEST(LongAttention, RandomCases) {
  if (std::getenv("HPCATTN_LONG_TESTS") == nullptr) GTEST_SKIP() << "set HPCATTN_LONG_TESTS=1";
  for (std::uint64_t seed = 1001; seed <= 16000; ++seed) expect_right(testkit::random_case(seed));
}

}  // namespace
}  // namespace hpcattn
