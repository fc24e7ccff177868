// SPDX-License-Identifier: Apache-2.0
// rope_norm_store_kv: values worked out by hand, special values, and what must not change a bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "hpcattn/rope.h"
#include "src/cpu/reference/numbers.h"
#include "src/testing/rope_case.h"
#include "src/testing/rounded_check.h"

namespace hpcattn {
namespace {

using reference::element;
using reference::set_element;
using testkit::code_at;
using testkit::GuardedTensor;
using testkit::QOutput;
using testkit::RopeBatch;
using testkit::RopeCase;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// One token at position 0, one head of 64 dims each, turned by no angle, stored at slot 5 of 16.
struct OneToken {
  explicit OneToken(DType dtype, DType cache_dtype, double value)
      : q(dtype, {1, 1, 64}),
        k(dtype, {1, 1, 64}),
        v(dtype, {1, 1, 64}),
        out_q(dtype, {1, 1, 64}),
        k_cache(cache_dtype, {1, 16, 1, 64}),
        v_cache(cache_dtype, {1, 16, 1, 64}),
        cos_sin(DType::kFloat32, {1, 64}),
        positions(GuardedTensor::of_ints(std::vector<std::int32_t>{0})),
        slots(GuardedTensor::of_ints(std::vector<std::int32_t>{5})),
        one(GuardedTensor::of_floats({1.0})),
        ones(GuardedTensor::of_floats(std::vector<double>(64, 1.0))) {
    for (std::int64_t d = 0; d < 64; ++d) {
      for (const GuardedTensor* rows : {&q, &k, &v}) set_element(*rows, {0, 0, d}, value);
      set_element(cos_sin, {0, d}, d < 32 ? 1.0 : 0.0);
    }
    args.q = q;
    args.k = k;
    args.v = v;
    args.cos_sin = cos_sin;
    args.positions = positions;
    args.slot_mapping = slots;
    args.k_cache = k_cache;
    args.v_cache = v_cache;
    args.out_q = out_q;
    if (is_fp8(cache_dtype)) args.k_scale = args.v_scale = one;
  }

  void norm(double eps) {
    args.norm_policy = QkNormPolicy::kNormThenRope;
    args.norm_eps = eps;
    args.q_norm_weight = args.k_norm_weight = ones;
  }

  double stored_k(std::int64_t d) const { return element(k_cache, {0, 5, 0, d}); }
  double stored_v(std::int64_t d) const { return element(v_cache, {0, 5, 0, d}); }

  GuardedTensor q, k, v, out_q, k_cache, v_cache, cos_sin, positions, slots, one, ones;
  RopeNormStoreKvArgs args;
};

// The seeds' system has 1e-6 built in, and a model whose config says 1e-5 gets other numbers.
TEST(RopeValueTest, TheEpsilonIsTheOneGiven) {
  for (double eps : {0.0, 1e-6, 1e-5, 3.0}) {
    OneToken token(DType::kFloat32, DType::kFloat32, 1e-3);
    token.norm(eps);
    rope_norm_store_kv(token.args);
    const double want = 1e-3 / std::sqrt(1e-6 + eps);
    EXPECT_NEAR(element(token.out_q, {0, 0, 7}), want, 1e-7 * want) << eps;
    EXPECT_NEAR(token.stored_k(7), want, 1e-7 * want) << eps;
  }
}

TEST(RopeValueTest, AQuarterTurnPairsTheDimsOfItsStyle) {
  for (RopeStyle style : {RopeStyle::kNeox, RopeStyle::kInterleaved}) {
    OneToken token(DType::kBFloat16, DType::kBFloat16, 0.0);
    for (std::int64_t d = 0; d < 64; ++d) {
      set_element(token.cos_sin, {0, d}, d < 32 ? 0.0 : 1.0);
      set_element(token.q, {0, 0, d}, static_cast<double>(d + 1));
    }
    token.args.style = style;
    rope_norm_store_kv(token.args);
    const bool neox = style == RopeStyle::kNeox;
    EXPECT_EQ(element(token.out_q, {0, 0, 0}), neox ? -33.0 : -2.0);
    EXPECT_EQ(element(token.out_q, {0, 0, 1}), neox ? -34.0 : 1.0);
    EXPECT_EQ(element(token.out_q, {0, 0, 32}), neox ? 1.0 : -34.0);
    EXPECT_EQ(element(token.out_q, {0, 0, 63}), neox ? 32.0 : 63.0);
  }
}

TEST(RopeValueTest, ZerosWithoutAnEpsilonStayZeros) {
  for (NormScope scope : {NormScope::kHead, NormScope::kToken}) {
    OneToken token(DType::kFloat16, DType::kFloat16, 0.0);
    token.norm(0.0);
    token.args.norm_scope = scope;
    rope_norm_store_kv(token.args);
    for (std::int64_t d = 0; d < 64; ++d) {
      EXPECT_EQ(element(token.out_q, {0, 0, d}), 0.0);
      EXPECT_EQ(token.stored_k(d), 0.0);
    }
  }
}

TEST(RopeValueTest, Fp8CachesSaturateAndKeepNan) {
  for (const auto& [dtype, largest] :
       {std::pair(DType::kFloat8E4M3, 448.0), {DType::kFloat8E5M2, 57344.0}}) {
    OneToken token(DType::kFloat32, dtype, 1.0);
    const std::vector<double> values = {1e6, -1e6, kInfinity, -kInfinity, std::nan(""), 450.0};
    // Not rotated: infinity times the sine of 0 would be NaN before anything is stored.
    GuardedTensor no_rotation(DType::kFloat32, {1, 0});
    token.args.cos_sin = no_rotation;
    for (std::size_t i = 0; i < values.size(); ++i) {
      set_element(token.k, {0, 0, static_cast<std::int64_t>(i)}, values[i]);
      set_element(token.v, {0, 0, static_cast<std::int64_t>(i)}, values[i]);
    }
    rope_norm_store_kv(token.args);
    for (const auto& stored : {&OneToken::stored_k, &OneToken::stored_v}) {
      EXPECT_EQ((token.*stored)(0), largest);
      EXPECT_EQ((token.*stored)(1), -largest);
      EXPECT_EQ((token.*stored)(2), largest);
      EXPECT_EQ((token.*stored)(3), -largest);
      EXPECT_TRUE(std::isnan((token.*stored)(4)));
      EXPECT_EQ((token.*stored)(5), 448.0);
      EXPECT_EQ((token.*stored)(6), 1.0);
    }
  }
}

TEST(RopeValueTest, TheScaleOfAnFp8QBringsItsLargestToUpperMax) {
  for (double upper_max : {448.0, 64.0}) {
    for (double value : {0.0, 1.0, -3e38, 1e-44}) {
      OneToken token(DType::kFloat32, DType::kFloat32, value);
      GuardedTensor out_q(DType::kFloat8E4M3, {1, 1, 64});
      GuardedTensor scale(DType::kFloat32, {1, 1});
      token.args.out_q = out_q;
      token.args.out_q_scale = scale;
      token.args.upper_max = upper_max;
      rope_norm_store_kv(token.args);
      const double got = element(scale, {0, 0});
      ASSERT_TRUE(std::isfinite(got) && got > 0.0) << value;
      if (value == 0.0) {
        EXPECT_EQ(got, 1.0);
        EXPECT_EQ(element(out_q, {0, 0, 9}), 0.0);
      } else if (std::fabs(value) > 1e-30) {
        EXPECT_EQ(element(out_q, {0, 0, 9}), std::copysign(upper_max, value));
      } else {
        EXPECT_EQ(got, std::numeric_limits<float>::min()) << "the smallest scale";
        EXPECT_EQ(element(out_q, {0, 0, 9}), 0.0);
      }
    }
  }
}

TEST(RopeValueTest, ANanStaysInItsHead) {
  RopeCase c;
  c.q_output = QOutput::kFp8Dynamic;
  RopeBatch clean(c);
  RopeBatch tainted(c);
  const RopeNormStoreKvArgs& args = tainted.args();
  set_element(args.q, {3, 1, 10}, std::nan(""));
  rope_norm_store_kv(clean.args());
  rope_norm_store_kv(args);
  EXPECT_TRUE(std::isnan(element(args.out_q, {3, 1, 10})));
  EXPECT_TRUE(std::isnan(element(args.out_q, {3, 1, 42}))) << "the other of its pair";
  for (std::int64_t token = 0; token < args.q.size(0); ++token) {
    for (std::int64_t head = 0; head < args.q.size(1); ++head) {
      if (token == 3 && head == 1) continue;
      for (std::int64_t d = 0; d < args.q.size(2); ++d) {
        ASSERT_EQ(code_at(args.out_q, {token, head, d}),
                  code_at(clean.args().out_q, {token, head, d}));
      }
      ASSERT_EQ(element(args.out_q_scale, {token, head}),
                element(clean.args().out_q_scale, {token, head}));
    }
  }
}

// One layout of q, its scales and the pages, however the tokens come: the seeds' system lays Q's
// scales out in one way for prefill and in another for decode.
TEST(RopeValueTest, APrefillInStepsOfOneTokenGivesTheSameBits) {
  for (QkNormPolicy policy :
       {QkNormPolicy::kNone, QkNormPolicy::kRopeThenNorm, QkNormPolicy::kNormThenRope}) {
    RopeCase c;
    c.q_lens = {37};
    c.past_lens = {6};
    c.padding_tokens = 0;
    c.cache_dtype = DType::kFloat8E4M3;
    c.q_output = QOutput::kFp8Dynamic;
    c.policy = policy;
    RopeBatch whole(c);
    RopeBatch steps(c);
    ASSERT_EQ(whole.run_and_check(), "");
    const RopeNormStoreKvArgs& all = steps.args();
    for (std::int64_t token = 0; token < 37; ++token) {
      const GuardedTensor cu_seqlens = GuardedTensor::of_ints(std::vector<std::int32_t>{0, 1});
      const GuardedTensor kv_lens = GuardedTensor::of_ints(
          std::vector<std::int32_t>{static_cast<std::int32_t>(6 + token + 1)});
      RopeNormStoreKvArgs step = all;
      step.q = all.q.slice(0, token, 1);
      step.k = all.k.slice(0, token, 1);
      step.v = all.v.slice(0, token, 1);
      step.out_q = all.out_q.slice(0, token, 1);
      step.out_q_scale = all.out_q_scale.slice(0, token, 1);
      step.cu_seqlens_q = cu_seqlens;
      step.kv_lens = kv_lens;
      rope_norm_store_kv(step);
    }
    EXPECT_EQ(whole.bytes(), steps.bytes());
  }
}

TEST(RopeValueTest, PaddingRowsBecomeZeroAndNothingOfThemIsRead) {
  RopeCase c;
  c.padding_tokens = 5;
  c.cache_dtype = DType::kFloat8E4M3;
  c.q_output = QOutput::kFp8Dynamic;
  c.kv_output = testkit::KvOutput::kStored;
  RopeBatch batch(c);
  ASSERT_EQ(batch.run_and_check(), "");
  const RopeNormStoreKvArgs& args = batch.args();
  for (std::int64_t token = args.q.size(0) - 5; token < args.q.size(0); ++token) {
    for (std::int64_t d = 0; d < args.q.size(2); ++d) {
      EXPECT_EQ(code_at(args.out_q, {token, 0, d}), 0U);
      EXPECT_EQ(code_at(args.out_k, {token, 0, d}), 0U);
      EXPECT_EQ(code_at(args.out_v, {token, 0, d}), 0U);
    }
    EXPECT_EQ(code_at(args.out_q_scale, {token, 3}), 0U);
  }
}

TEST(RopeValueTest, KAndVInPlaceGiveTheBitsOfOutputsApart) {
  for (NormScope scope : {NormScope::kHead, NormScope::kToken}) {
    RopeCase c;
    c.policy = QkNormPolicy::kRopeThenNorm;
    c.scope = scope;
    c.kv_output = testkit::KvOutput::kOwn;
    RopeBatch apart(c);
    RopeBatch in_place(c);
    rope_norm_store_kv(apart.args());
    RopeNormStoreKvArgs args = in_place.args();
    args.out_q = args.q;
    args.out_k = args.k;
    args.out_v = args.v;
    rope_norm_store_kv(args);
    EXPECT_EQ(apart.pool().bytes(), in_place.pool().bytes());
    for (std::int64_t token = 0; token < args.q.size(0); ++token) {
      for (std::int64_t d = 0; d < args.q.size(2); ++d) {
        ASSERT_EQ(code_at(args.q, {token, 3, d}), code_at(apart.args().out_q, {token, 3, d}));
        ASSERT_EQ(code_at(args.k, {token, 1, d}), code_at(apart.args().out_k, {token, 1, d}));
        ASSERT_EQ(code_at(args.v, {token, 1, d}), code_at(apart.args().out_v, {token, 1, d}));
      }
    }
  }
}

TEST(RopeValueTest, PagesPast2To31ElementsAreFound) {
  constexpr std::int64_t kPages = (std::int64_t{1} << 32) / (16 * 64) + 2;  // of 1024 elements
  OneToken token(DType::kBFloat16, DType::kBFloat16, 1.5);
  const auto bytes = static_cast<std::size_t>(kPages * 16 * 64 * 2);
  testkit::GuardedBuffer k_pool(bytes, testkit::GuardSide::kAfter, true);
  testkit::GuardedBuffer v_pool(bytes, testkit::GuardSide::kAfter, true);
  const GuardedTensor slots = GuardedTensor::of_ints(std::vector<std::int64_t>{kPages * 16 - 1});
  token.args.k_cache = Tensor::contiguous(k_pool.data(), DType::kBFloat16, {kPages, 16, 1, 64});
  token.args.v_cache = Tensor::contiguous(v_pool.data(), DType::kBFloat16, {kPages, 16, 1, 64});
  token.args.slot_mapping = slots;
  rope_norm_store_kv(token.args);
  EXPECT_EQ(element(token.args.k_cache, {kPages - 1, 15, 0, 63}), 1.5);
  EXPECT_EQ(element(token.args.v_cache, {kPages - 1, 15, 0, 0}), 1.5);
  EXPECT_EQ(element(token.args.k_cache, {kPages - 1, 14, 0, 63}), 0.0);
}

}  // namespace
}  // namespace hpcattn
