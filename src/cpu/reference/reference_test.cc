// SPDX-License-Identifier: Apache-2.0
// The reference against values worked out by hand, and against itself over two layouts of memory.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "src/common/float_bits.h"
#include "src/cpu/reference/attention.h"
#include "src/cpu/reference/merge.h"
#include "src/cpu/reference/numbers.h"
#include "src/testing/attention_case.h"

namespace hpcattn::reference {
namespace {

using testkit::AttentionBatch;
using testkit::AttentionCase;
using testkit::GuardedTensor;

TEST(Numbers, EveryCodeDecodesAsTheLibraryDoes) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    const std::uint32_t codes = 1U << (8 * size_bytes(dtype));
    for (std::uint32_t code = 0; code < codes; ++code) {
      const double want = decode(code, dtype);
      const double got = load_float(&code, dtype, 0);
      ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
          << name(dtype) << " code " << code << ": " << got << " and " << want;
    }
  }
}

TEST(Numbers, KnownValues) {
  EXPECT_EQ(decode(0x7e, DType::kFloat8E4M3), 448.0);
  EXPECT_EQ(decode(0x7b, DType::kFloat8E5M2), 57344.0);
  EXPECT_EQ(decode(0x01, DType::kFloat8E4M3), std::ldexp(1.0, -9));
  EXPECT_EQ(decode(0xc000, DType::kFloat16), -2.0);
  EXPECT_EQ(decode(0x3f80, DType::kBFloat16), 1.0);
  EXPECT_EQ(largest(DType::kFloat16), 65504.0);
  EXPECT_EQ(encode(1e9, DType::kFloat8E4M3), 0x7eU);
  EXPECT_EQ(encode(-1e9, DType::kFloat8E5M2), 0xfbU);
  EXPECT_TRUE(std::isinf(decode(encode(1e9, DType::kFloat16), DType::kFloat16)));
}

TEST(Numbers, EncodeRoundsToNearestEvenAndInvertsDecode) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    const std::uint32_t half = 1U << (8 * size_bytes(dtype) - 1);
    for (std::uint32_t code = 0; code + 1 < half; ++code) {
      const double value = decode(code, dtype);
      const double next = decode(code + 1, dtype);
      if (!std::isfinite(next)) break;
      ASSERT_EQ(encode(value, dtype), code) << name(dtype);
      ASSERT_EQ(encode(-value, dtype), code | half) << name(dtype);
      ASSERT_EQ(encode((value + next) / 2, dtype), code + (code & 1U)) << name(dtype);
      ASSERT_EQ(encode(value + (next - value) * 0.51, dtype), code + 1) << name(dtype);
    }
  }
}

/// One head of dim 1, no pages: scores and outputs can be worked out by hand.
struct Tiny {
  explicit Tiny(std::vector<double> q_values, std::vector<double> k_values,
                std::vector<double> v_values)
      : q(GuardedTensor::of_floats(q_values)),
        k(GuardedTensor::of_floats(k_values)),
        v(GuardedTensor::of_floats(v_values)),
        cu_q(GuardedTensor::of_ints(std::vector<std::int32_t>{0, int(q_values.size())})),
        cu_k(GuardedTensor::of_ints(std::vector<std::int32_t>{0, int(k_values.size())})) {
    args.q = Tensor::contiguous(q.tensor().data(), DType::kFloat32, {q.tensor().size(0), 1, 1});
    args.k = Tensor::contiguous(k.tensor().data(), DType::kFloat32, {k.tensor().size(0), 1, 1});
    args.v = Tensor::contiguous(v.tensor().data(), DType::kFloat32, {v.tensor().size(0), 1, 1});
    args.cu_seqlens_q = cu_q;
    args.cu_seqlens_k = cu_k;
    args.options.scale = 1.0;
  }
  GuardedTensor q, k, v, cu_q, cu_k;
  PackedAttentionArgs args;
};

TEST(ReferenceAttention, TwoKeysByHand) {
  const Tiny tiny({2.0}, {0.0, std::log(3.0) / 2.0}, {10.0, 20.0});
  const AttentionResult result = attention(tiny.args);
  EXPECT_NEAR(result.out[0], 0.25 * 10.0 + 0.75 * 20.0, 1e-6);
  EXPECT_NEAR(result.lse[0], std::log(4.0), 1e-7);
  EXPECT_EQ(result.num_visible[0], 2);
}

TEST(ReferenceAttention, VisibleKeysByHand) {
  struct Row {
    int queries, keys;
    bool causal;
    std::optional<std::int64_t> window;
    std::vector<std::int64_t> visible;  // of each query token
  };
  const std::int64_t longest = std::numeric_limits<std::int64_t>::max();
  const std::vector<Row> rows = {
      {3, 3, true, {}, {1, 2, 3}},       {1, 5, true, {}, {5}},
      {2, 5, true, {}, {4, 5}},          {3, 2, true, {}, {0, 1, 2}},
      {3, 5, false, {}, {5, 5, 5}},      {3, 5, true, 1, {1, 1, 1}},
      {3, 5, true, 3, {3, 3, 3}},        {5, 5, true, 2, {1, 2, 2, 2, 2}},
      {5, 5, false, 2, {2, 3, 3, 3, 2}}, {3, 5, false, 1, {1, 1, 1}},
      {2, 5, true, longest, {4, 5}},     {2, 5, false, longest, {5, 5}},
      {3, 0, true, {}, {0, 0, 0}},       {4, 2, false, 2, {0, 1, 2, 2}},
  };
  for (const Row& row : rows) {
    Tiny tiny(std::vector<double>(std::size_t(row.queries), 1.0),
              std::vector<double>(std::size_t(row.keys), 1.0),
              std::vector<double>(std::size_t(row.keys), 7.0));
    tiny.args.options.causal = row.causal;
    tiny.args.options.window = row.window;
    const AttentionResult result = attention(tiny.args);
    EXPECT_EQ(result.num_visible, row.visible)
        << row.queries << " queries, " << row.keys << " keys, causal " << row.causal << ", window "
        << row.window.value_or(0);
    for (std::size_t i = 0; i < row.visible.size(); ++i) {
      EXPECT_NEAR(result.out[i], row.visible[i] > 0 ? 7.0 : 0.0, 1e-12);
    }
  }
}

TEST(ReferenceAttention, SinkTakesItsShareOfTheSum) {
  Tiny tiny({1.0, 1.0}, {0.0}, {8.0});
  const GuardedTensor sinks = GuardedTensor::of_floats({std::log(3.0)});
  tiny.args.options.sinks = sinks;
  const AttentionResult result = attention(tiny.args);
  EXPECT_NEAR(result.lse[0], std::log(3.0), 1e-6);  // sees no key: the sink alone
  EXPECT_EQ(result.out[0], 0.0);
  EXPECT_NEAR(result.out[1], 8.0 / 4.0, 1e-6);
  EXPECT_NEAR(result.lse[1], std::log(4.0), 1e-6);
}

TEST(ReferenceAttention, SoftcapThenAlibiThenScales) {
  Tiny tiny({2.0}, {3.0, 5.0}, {1.0, -1.0});
  const GuardedTensor slopes = GuardedTensor::of_floats({0.5});
  const GuardedTensor k_scale = GuardedTensor::of_floats({0.5});
  const GuardedTensor v_scale = GuardedTensor::of_floats({4.0});
  tiny.args.options.scale = 0.25;
  tiny.args.options.softcap = 2.0;
  tiny.args.options.alibi_slopes = slopes;
  tiny.args.options.k_scale = k_scale;
  tiny.args.options.v_scale = v_scale;
  const double first = 2.0 * std::tanh(0.25 * 0.5 * 6.0 / 2.0) - 0.5;
  const double second = 2.0 * std::tanh(0.25 * 0.5 * 10.0 / 2.0);
  const double sum = std::exp(first) + std::exp(second);
  const AttentionResult result = attention(tiny.args);
  EXPECT_NEAR(result.out[0], 4.0 * (std::exp(first) - std::exp(second)) / sum, 1e-12);
  EXPECT_NEAR(result.lse[0], std::log(sum), 1e-12);
}

TEST(ReferenceAttention, PagesAndPackedAgree) {
  AttentionCase c;
  c.name = "pages and packed";
  c.q_lens = {1, 5, 0, 7};
  c.kv_lens = {33, 5, 17, 40};
  c.sinks = DType::kBFloat16;
  c.window = 20;
  for (testkit::KvLayout layout :
       {testkit::KvLayout::kNhd, testkit::KvLayout::kHnd, testkit::KvLayout::kHalves,
        testkit::KvLayout::kInterleaved, testkit::KvLayout::kMixed}) {
    c.layout = layout;
    AttentionBatch batch(c);
    const AttentionResult packed = attention(batch.packed());
    const AttentionResult paged = attention(batch.paged());
    EXPECT_EQ(paged.out, packed.out) << to_string(c);
    EXPECT_EQ(paged.lse, packed.lse) << to_string(c);
    batch.rename_pages(99);
    EXPECT_EQ(attention(batch.paged()).out, packed.out) << to_string(c);
    EXPECT_EQ(batch.check_surroundings(), "");
  }
}

TEST(ReferenceMerge, TwoPartialsByHand) {
  const GuardedTensor a = GuardedTensor::of_floats({4.0});
  const GuardedTensor b = GuardedTensor::of_floats({8.0});
  const GuardedTensor none = GuardedTensor::of_floats({std::nan("")});
  const GuardedTensor lse_a = GuardedTensor::of_floats({0.0});
  const GuardedTensor lse_b = GuardedTensor::of_floats({std::log(3.0)});
  const GuardedTensor lse_none = GuardedTensor::of_floats({-INFINITY});
  const auto out = [](const GuardedTensor& t) {
    return Tensor::contiguous(t.tensor().data(), DType::kFloat32, {1, 1, 1});
  };
  const auto lse = [](const GuardedTensor& t) {
    return Tensor::contiguous(t.tensor().data(), DType::kFloat32, {1, 1});
  };
  MergeArgs args;
  args.partials = {out(a), out(none), out(b)};
  args.lses = {lse(lse_a), lse(lse_none), lse(lse_b)};
  const MergeResult result = reference::merge_partials(args);
  EXPECT_NEAR(result.out[0], 0.25 * 4.0 + 0.75 * 8.0, 1e-6);
  EXPECT_NEAR(result.lse[0], std::log(4.0), 1e-6);
}

}  // namespace
}  // namespace hpcattn::reference
