// SPDX-License-Identifier: Apache-2.0
// Attention on the GPU against the float64 reference: every feature with every dtype, every shape.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "src/gpu_tests/attention_run.h"
#include "src/gpu_tests/expect.h"

namespace hpcattn {
namespace {

using testkit::AttentionCase;
using testkit::DTypes;
using testkit::KvLayout;

constexpr DTypes kBf16 = {DType::kBFloat16, DType::kBFloat16, DType::kBFloat16};
constexpr DTypes kF16 = {DType::kFloat16, DType::kFloat16, DType::kFloat16};
constexpr DTypes kBf16Fp8 = {DType::kBFloat16, DType::kFloat8E4M3, DType::kBFloat16};
constexpr DTypes kFp8 = {DType::kFloat8E4M3, DType::kFloat8E4M3, DType::kBFloat16};

/// Decode, speculative rows, chunked prefill, prefill and two empty requests in one call.
AttentionCase mixed_case() {
  AttentionCase c;
  c.q_lens = {1, 4, 0, 9, 13, 1, 2};
  c.kv_lens = {70, 4, 5, 33, 131, 1, 0};
  return c;
}

void expect_right(std::vector<AttentionCase> cases) {
  for (std::size_t i = 0; i < cases.size(); ++i) cases[i].seed = i + 1;
  testkit::expect_all_right(cases, testkit::run_on_gpu);
}

TEST(GpuAttention, EveryFeatureWithEveryDtype) {
  std::vector<AttentionCase> cases;
  for (const DTypes& dtypes : testkit::gpu_dtypes()) {
    for (const testkit::Feature& feature : testkit::all_features()) {
      AttentionCase c = mixed_case();
      c.name = feature.name;
      testkit::set_dtypes(c, dtypes);
      feature.apply(c);
      cases.push_back(c);
    }
  }
  expect_right(cases);
}

TEST(GpuAttention, EveryFeatureWithEveryHeadDim) {
  std::vector<AttentionCase> cases;
  for (std::int64_t head_dim : {80, 96, 128, 192, 256}) {
    for (const testkit::Feature& feature : testkit::all_features()) {
      for (const DTypes& dtypes : {kBf16, kBf16Fp8, kFp8}) {
        AttentionCase c = mixed_case();
        c.name = feature.name;
        c.head_dim = head_dim;
        testkit::set_dtypes(c, dtypes);
        feature.apply(c);
        cases.push_back(c);
      }
    }
  }
  expect_right(cases);
}

TEST(GpuAttention, EveryHeadDimWithEveryDtype) {
  std::vector<AttentionCase> cases;
  for (std::int64_t head_dim : {64, 80, 96, 128, 192, 256}) {
    for (const DTypes& dtypes : testkit::gpu_dtypes()) {
      for (std::int64_t group : {1, 5, 8}) {
        AttentionCase c = mixed_case();
        c.name = "head dim and dtype";
        c.head_dim = head_dim;
        c.num_q_heads = 2 * group;
        testkit::set_dtypes(c, dtypes);
        cases.push_back(c);
      }
    }
  }
  expect_right(cases);
}

TEST(GpuAttention, EveryHeadDimAndGroup) {
  std::vector<AttentionCase> cases;
  for (std::int64_t head_dim : {64, 80, 96, 128, 192, 256}) {
    for (std::int64_t group : {1, 2, 3, 4, 5, 7, 8, 16, 32}) {
      for (const DTypes& dtypes : {kBf16, kF16, kBf16Fp8, kFp8}) {
        for (bool decode : {true, false}) {
          AttentionCase c;
          c.name = "head dim and group";
          c.head_dim = head_dim;
          c.num_kv_heads = 2;
          c.num_q_heads = 2 * group;
          c.q_lens = decode ? std::vector<std::int32_t>{1, 1, 1} : std::vector{1, 3, 19};
          c.kv_lens = {97, 40, 66};
          if (cases.size() % 3 == 0) c.window = 31;
          testkit::set_dtypes(c, dtypes);
          cases.push_back(c);
        }
      }
    }
  }
  expect_right(cases);
}

TEST(GpuAttention, EveryPageSizeAndLayout) {
  std::vector<AttentionCase> cases;
  for (std::int64_t page_size : {8, 16, 24, 32, 40, 64, 72, 128, 256}) {
    for (KvLayout layout : {KvLayout::kNhd, KvLayout::kHnd, KvLayout::kHalves,
                            KvLayout::kInterleaved, KvLayout::kMixed}) {
      for (const DTypes& dtypes : {kBf16, kF16, kBf16Fp8, kFp8}) {
        AttentionCase c = mixed_case();
        c.name = "page size and layout";
        c.page_size = page_size;
        c.layout = layout;
        c.kv_lens[0] =
            static_cast<std::int32_t>(page_size) - 1 + static_cast<std::int32_t>(cases.size() % 3);
        if (cases.size() % 4 == 1) c.head_dim = 128;
        testkit::set_dtypes(c, dtypes);
        cases.push_back(c);
      }
    }
  }
  expect_right(cases);
}

TEST(GpuAttention, LengthsAtTheEdgesOfPagesAndTiles) {
  std::vector<AttentionCase> cases;
  for (std::int32_t kv_len : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 192, 193, 257}) {
    // Two heads: 16 rows are narrow, 128 rows are a tile, of head dim 256 64 are.
    for (std::int32_t q_len : {1, 2, 7, 8, 9, 15, 31, 32, 33, 63, 64, 65, 129}) {
      AttentionCase c;
      c.name = "edges";
      c.num_q_heads = 2;
      c.num_kv_heads = 1;
      c.q_lens = {std::min(q_len, kv_len)};
      c.kv_lens = {kv_len};
      if (cases.size() % 2 == 0) c.window = 64;
      if (cases.size() % 5 == 0) c.head_dim = 256;
      testkit::set_dtypes(c, cases.size() % 3 == 0 ? kBf16Fp8 : kBf16);
      cases.push_back(c);
    }
  }
  expect_right(cases);
}

struct BatchKind {
  const char* name;
  std::vector<std::int32_t> q_lens;
  std::vector<std::int32_t> kv_lens;
};

const std::vector<BatchKind>& batch_kinds() {
  static const std::vector<BatchKind> kinds = {
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
      {"a long chunk", {150}, {700}},
  };
  return kinds;
}

TEST(GpuAttention, EveryKindOfBatch) {
  std::vector<AttentionCase> cases;
  for (const BatchKind& kind : batch_kinds()) {
    for (const testkit::Feature& feature : testkit::all_features()) {
      for (std::int64_t group : {1, 3, 8}) {
        AttentionCase c;
        c.name = std::string(kind.name) + ", " + feature.name;
        c.q_lens = kind.q_lens;
        c.kv_lens = kind.kv_lens;
        c.num_kv_heads = 1;
        c.num_q_heads = group;
        testkit::set_dtypes(c, kBf16);
        feature.apply(c);
        cases.push_back(c);
      }
    }
  }
  expect_right(cases);
}

TEST(GpuAttention, RandomCases) {
  std::vector<AttentionCase> cases;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    cases.push_back(testkit::gpu_random_case(seed));
  }
  testkit::expect_all_right(cases, testkit::run_on_gpu);
}

}  // namespace
}  // namespace hpcattn
