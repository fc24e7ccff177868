// SPDX-License-Identifier: Apache-2.0
// rope_norm_store_kv against the float64 reference: every feature with every dtype, and any
// together. A batch checks itself that nothing but its outputs was written
// (src/testing/rope_case.h).
#include "hpcattn/rope.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "hpcattn/counters.h"
#include "hpcattn/error.h"
#include "src/testing/execution.h"
#include "src/testing/rope_case.h"

namespace hpcattn {
namespace {

using testkit::KvLayout;
using testkit::KvOutput;
using testkit::Places;
using testkit::QOutput;
using testkit::RopeBatch;
using testkit::RopeCase;

constexpr DType kWide[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3,
                             DType::kFloat8E5M2};
constexpr QkNormPolicy kPolicies[] = {QkNormPolicy::kNone, QkNormPolicy::kRopeThenNorm,
                                      QkNormPolicy::kNormThenRope};

struct Feature {
  const char* name;
  std::function<void(RopeCase&)> set;
};

const std::vector<Feature>& features() {
  static const std::vector<Feature> all = {
      {"plain", [](RopeCase&) {}},
      {"interleaved pairs", [](RopeCase& c) { c.style = RopeStyle::kInterleaved; }},
      {"partial rotary", [](RopeCase& c) { c.rotary_dim = 26; }},
      {"partial rotary, interleaved",
       [](RopeCase& c) {
         c.rotary_dim = 26;
         c.style = RopeStyle::kInterleaved;
       }},
      {"no rotary", [](RopeCase& c) { c.rotary_dim = 0; }},
      {"norm by token", [](RopeCase& c) { c.scope = NormScope::kToken; }},
      {"large epsilon", [](RopeCase& c) { c.eps = 0.5; }},
      {"no epsilon", [](RopeCase& c) { c.eps = 0.0; }},
      {"float16 cos and sin", [](RopeCase& c) { c.cos_sin_dtype = DType::kFloat16; }},
      {"bfloat16 cos and sin", [](RopeCase& c) { c.cos_sin_dtype = DType::kBFloat16; }},
      {"q, k and v apart", [](RopeCase& c) { c.packed = false; }},
      {"heads before places", [](RopeCase& c) { c.layout = KvLayout::kHnd; }},
      {"K and V as halves", [](RopeCase& c) { c.layout = KvLayout::kHalves; }},
      {"K and V interleaved", [](RopeCase& c) { c.layout = KvLayout::kInterleaved; }},
      {"K and V laid out unlike", [](RopeCase& c) { c.layout = KvLayout::kMixed; }},
      {"slots", [](RopeCase& c) { c.places = Places::kSlotMapping; }},
      {"slots of -1",
       [](RopeCase& c) {
         c.places = Places::kSlotMapping;
         c.hole_share = 0.5;
       }},
      {"pages of -1", [](RopeCase& c) { c.hole_share = 0.5; }},
      {"int64 indices", [](RopeCase& c) { c.index_dtype = DType::kInt64; }},
      {"no cache", [](RopeCase& c) { c.places = Places::kNoCache; }},
      {"given positions", [](RopeCase& c) { c.given_positions = true; }},
      {"mrope", [](RopeCase& c) { c.given_positions = c.mrope = true; }},
      {"no lengths",
       [](RopeCase& c) {
         c.given_positions = true;
         c.places = Places::kSlotMapping;
         c.lengths = false;
       }},
      {"a scale for each head", [](RopeCase& c) { c.scale_per_head = true; }},
      {"q in place", [](RopeCase& c) { c.q_output = QOutput::kInPlace; }},
      {"fp8 q", [](RopeCase& c) { c.q_output = QOutput::kFp8Dynamic; }},
      {"fp8 q, smaller maximum",
       [](RopeCase& c) {
         c.q_output = QOutput::kFp8Dynamic;
         c.upper_max = 57.0;
       }},
      {"fp8 q with a static scale", [](RopeCase& c) { c.q_output = QOutput::kFp8Static; }},
      {"K and V out, own dtype", [](RopeCase& c) { c.kv_output = KvOutput::kOwn; }},
      {"K and V out, as stored", [](RopeCase& c) { c.kv_output = KvOutput::kStored; }},
      {"K and V out without a cache",
       [](RopeCase& c) {
         c.kv_output = KvOutput::kStored;
         c.places = Places::kNoCache;
       }},
      {"no padding", [](RopeCase& c) { c.padding_tokens = 0; }},
      {"padding alone", [](RopeCase& c) { c.q_lens = c.past_lens = {0, 0}; }},
      {"no request", [](RopeCase& c) { c.q_lens = c.past_lens = {}; }},
      {"one KV head for many", [](RopeCase& c) { c.num_q_heads = 5, c.num_kv_heads = 1; }},
  };
  return all;
}

class RopeFeatureTest : public testing::TestWithParam<DType> {};

TEST_P(RopeFeatureTest, EveryFeatureWithEveryCacheDtypeAndPolicy) {
  std::uint64_t seed = 1;
  for (const Feature& feature : features()) {
    for (DType cache_dtype : {GetParam(), DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      for (QkNormPolicy policy : kPolicies) {
        RopeCase c;
        c.name = feature.name;
        c.seed = ++seed;
        c.dtype = GetParam();
        c.cache_dtype = cache_dtype;
        c.policy = policy;
        feature.set(c);
        EXPECT_EQ(RopeBatch(c).run_and_check(testkit::with_threads(2)), "");
      }
    }
  }
}

TEST_P(RopeFeatureTest, WeightsOfEveryFloatDtypeAndEveryHeadDim) {
  for (DType weight_dtype : kFloats) {
    for (std::int64_t head_dim : {64, 80, 96, 128, 192, 256}) {
      RopeCase c;
      c.name = "weights";
      c.dtype = c.cache_dtype = GetParam();
      c.weight_dtype = weight_dtype;
      c.head_dim = c.rotary_dim = head_dim;
      c.policy = QkNormPolicy::kNormThenRope;
      EXPECT_EQ(RopeBatch(c).run_and_check(), "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, RopeFeatureTest, testing::ValuesIn(kWide),
                         [](const auto& param) { return std::string(name(param.param)); });

TEST(RopeTest, AnyFeaturesTogether) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    ASSERT_EQ(RopeBatch(testkit::random_rope_case(seed)).run_and_check(testkit::with_threads(2)),
              "");
  }
}

TEST(LongRopeTest, AnyFeaturesTogether) {
  if (std::getenv("HPCATTN_LONG_TESTS") == nullptr) GTEST_SKIP() << "set HPCATTN_LONG_TESTS=1";
  for (std::uint64_t seed = 1000; seed < 11000; ++seed) {
    ASSERT_EQ(RopeBatch(testkit::random_rope_case(seed)).run_and_check(testkit::with_threads(3)),
              "");
  }
}

// The shape at which the seeds' operator writes where it must not: no norm, bf16, 256 decode rows.
TEST(RopeTest, DecodeOf256RowsWithoutNorm) {
  RopeCase c;
  c.name = "256 decode rows";
  c.q_lens.assign(256, 1);
  c.past_lens.clear();
  for (std::int32_t i = 0; i < 256; ++i) c.past_lens.push_back(i);
  c.num_q_heads = 8;
  c.num_kv_heads = 1;
  c.head_dim = c.rotary_dim = 128;
  c.page_size = 64;
  c.padding_tokens = 0;
  EXPECT_EQ(RopeBatch(c).run_and_check(testkit::with_threads(2)), "");
  c.num_q_heads = 64;
  c.num_kv_heads = 8;
  c.past_lens.assign(256, 3);
  EXPECT_EQ(RopeBatch(c).run_and_check(testkit::with_threads(2)), "");
}

TEST(RopeTest, ThreadsAndTheCallersPoolChangeNoBit) {
  RopeCase c = testkit::random_rope_case(77);
  c.name = "threads";
  c.q_lens = {200, 1, 31};
  c.past_lens = {0, 9, 100};
  c.q_output = QOutput::kFp8Dynamic;
  c.policy = QkNormPolicy::kRopeThenNorm;
  RopeBatch alone(c);
  RopeBatch shared(c);
  RopeBatch foreign(c);
  EXPECT_EQ(alone.run_and_check(testkit::with_threads(1)), "");
  EXPECT_EQ(shared.run_and_check(testkit::with_threads(4)), "");
  int num_bodies = 0;
  Execution execution = testkit::with_threads(2);
  execution.parallel_for = [&](int n, const std::function<void(int)>& body) {
    for (int i = n; i-- > 0; ++num_bodies) body(i);
  };
  EXPECT_EQ(foreign.run_and_check(execution), "");
  EXPECT_GT(num_bodies, 1);
  EXPECT_EQ(alone.bytes(), shared.bytes());
  EXPECT_EQ(alone.bytes(), foreign.bytes());
}

TEST(RopeTest, CallsAreCountedOnceTheyPassTheirChecks) {
  reset_counters();
  RopeCase c;
  RopeBatch batch(c);
  ASSERT_EQ(batch.run_and_check(), "");
  RopeNormStoreKvArgs wrong = batch.args();
  wrong.cos_sin = Tensor();
  EXPECT_THROW(rope_norm_store_kv(wrong), InvalidArgument);
  EXPECT_EQ(counters().at("rope_norm_store_kv"), 1);
}

}  // namespace
}  // namespace hpcattn
