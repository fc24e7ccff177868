// SPDX-License-Identifier: Apache-2.0
// store_kv, rope_norm_store_kv and merge_partials on the GPU against the float64 references.
#include <gtest/gtest.h>

#include <cmath>

#include "src/gpu_tests/expect.h"
#include "src/gpu_tests/kv_run.h"
#include "src/testing/device_call.h"

namespace hpcattn {
namespace {

using testkit::GpuLane;
using testkit::KvLayout;
using testkit::MergeCase;
using testkit::RopeCase;
using testkit::run_merge;
using testkit::run_rope;
using testkit::run_store;
using testkit::StoreCase;

constexpr DType kWide[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr KvLayout kLayouts[] = {KvLayout::kNhd, KvLayout::kHnd, KvLayout::kHalves,
                                 KvLayout::kInterleaved, KvLayout::kMixed};

TEST(GpuStore, EveryDtypeLayoutAndKindOfScale) {
  std::vector<StoreCase> cases;
  for (DType dtype : kWide) {
    for (DType cache_dtype : {dtype, DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      for (KvLayout layout : kLayouts) {
        for (bool per_head : {false, true}) {
          for (bool packed : {false, true}) {
            StoreCase c;
            c.dtype = dtype;
            c.cache_dtype = cache_dtype;
            c.layout = layout;
            c.scale_per_head = per_head;
            c.packed = packed;
            c.index_dtype = packed ? DType::kInt64 : DType::kInt32;
            cases.push_back(c);
          }
        }
      }
    }
  }
  testkit::expect_all_right(cases,
                            [](GpuLane& lane, const StoreCase& c) { return run_store(lane, c); });
}

TEST(GpuStore, AnyShape) {
  testkit::Rng rng(9);
  std::vector<StoreCase> cases;
  for (int round = 0; round < 150; ++round) {
    StoreCase c;
    c.dtype = rng.pick(std::vector<DType>(std::begin(kWide), std::end(kWide)));
    c.cache_dtype = rng.pick(std::vector<DType>{c.dtype, DType::kFloat8E4M3, DType::kFloat8E5M2});
    c.layout = kLayouts[rng.integer(0, 4)];
    c.index_dtype = rng.chance(0.5) ? DType::kInt32 : DType::kInt64;
    c.num_tokens = rng.integer(0, 150);
    c.num_kv_heads = rng.integer(1, 9);
    c.head_dim = rng.pick(std::vector<std::int64_t>{64, 80, 96, 128, 192, 256});
    c.page_size = 8 * rng.integer(1, 5);
    c.padding_tokens = rng.integer(0, c.num_tokens);
    c.hole_share = rng.pick(std::vector<double>{0.0, 0.3, 1.0});
    c.scale_per_head = rng.chance(0.5);
    c.packed = rng.chance(0.5);
    cases.push_back(c);
  }
  testkit::expect_all_right(cases, [&](GpuLane& lane, const StoreCase& c) {
    return run_store(lane, c, static_cast<std::uint64_t>(&c - cases.data()));
  });
}

TEST(GpuRope, EveryDtypePolicyAndStyle) {
  std::vector<RopeCase> cases;
  for (DType dtype : kWide) {
    for (DType cache_dtype : {dtype, DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      for (auto policy :
           {QkNormPolicy::kNone, QkNormPolicy::kRopeThenNorm, QkNormPolicy::kNormThenRope}) {
        for (NormScope scope : {NormScope::kHead, NormScope::kToken}) {
          for (RopeStyle style : {RopeStyle::kNeox, RopeStyle::kInterleaved}) {
            for (auto q_output : {testkit::QOutput::kOwn, testkit::QOutput::kInPlace,
                                  testkit::QOutput::kFp8Dynamic, testkit::QOutput::kFp8Static}) {
              RopeCase c;
              c.name = "policy and style";
              c.seed = cases.size() + 1;
              c.dtype = dtype;
              c.cache_dtype = cache_dtype;
              c.policy = policy;
              c.scope = scope;
              c.style = style;
              c.q_output = q_output;
              c.head_dim = cases.size() % 2 == 0 ? 128 : 80;
              c.rotary_dim = cases.size() % 3 == 0 ? 32 : c.head_dim;
              c.aligned = cases.size() % 5 != 0;
              cases.push_back(c);
            }
          }
        }
      }
    }
  }
  testkit::expect_all_right(cases, run_rope);
}

TEST(GpuRope, RandomCases) {
  std::vector<RopeCase> cases;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    cases.push_back(testkit::random_rope_case(seed));
  }
  testkit::expect_all_right(cases, run_rope);
}

/// 256 tokens of decode are where others have read memory that is not theirs.
TEST(GpuRope, ManyRowsOfDecode) {
  std::vector<RopeCase> cases;
  for (int requests : {1, 31, 32, 33, 255, 256, 257, 1000}) {
    for (auto policy :
         {QkNormPolicy::kNone, QkNormPolicy::kRopeThenNorm, QkNormPolicy::kNormThenRope}) {
      RopeCase c;
      c.name = "decode";
      c.seed = cases.size() + 1;
      c.q_lens.assign(static_cast<std::size_t>(requests), 1);
      c.past_lens.assign(static_cast<std::size_t>(requests), 20);
      c.head_dim = c.rotary_dim = 128;
      c.policy = policy;
      c.aligned = true;
      c.page_size = 64;
      cases.push_back(c);
    }
  }
  testkit::expect_all_right(cases, run_rope);
}

/// Warps that have many steps, of several groups of tokens and kinds; the last group is no whole
/// one, and one has tokens of padding beside live ones.
TEST(GpuRope, UnitsOfManySteps) {
  std::vector<RopeCase> cases;
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (auto policy :
         {QkNormPolicy::kNone, QkNormPolicy::kRopeThenNorm, QkNormPolicy::kNormThenRope}) {
      RopeCase c;
      c.name = "many steps";
      c.seed = cases.size() + 1;
      c.q_lens = {1200, 1, 0, 400};
      c.past_lens = {0, 33, 0, 100};
      c.padding_tokens = 40;
      c.num_q_heads = cases.size() < 3 ? 15 : 24;
      c.num_kv_heads = cases.size() < 3 ? 5 : 1;
      c.head_dim = 128;
      c.rotary_dim = cases.size() % 2 == 0 ? 128 : 96;
      c.dtype = dtype;
      c.cache_dtype = cases.size() % 2 == 0 ? dtype : DType::kFloat8E4M3;
      c.q_output = cases.size() % 2 == 0 ? testkit::QOutput::kOwn : testkit::QOutput::kFp8Dynamic;
      c.policy = policy;
      c.aligned = true;
      cases.push_back(c);
    }
  }
  testkit::expect_all_right(cases, run_rope);
}

/// Rows whose squares are no float32, and that a norm brings back to ordinary numbers.
TEST(GpuRope, RowsOfAnyMagnitude) {
  std::vector<RopeCase> cases;
  for (double deviation : {1e-36, 1e-30, 1e-15, 1e15, 1e30}) {
    for (auto policy : {QkNormPolicy::kRopeThenNorm, QkNormPolicy::kNormThenRope}) {
      for (double eps : {0.0, 1e-20, 1e-6}) {
        RopeCase c;
        c.name = "magnitude";
        c.seed = cases.size() + 1;
        c.deviation = deviation;
        c.policy = policy;
        c.eps = eps;
        c.aligned = true;
        c.q_output = cases.size() % 2 == 0 ? testkit::QOutput::kOwn : testkit::QOutput::kFp8Dynamic;
        cases.push_back(c);
      }
    }
  }
  testkit::expect_all_right(cases, run_rope);
}

TEST(GpuMerge, EveryDtypeShapeAndStride) {
  std::vector<MergeCase> cases;
  for (DType dtype : kWide) {
    for (DType out_dtype : {dtype, DType::kFloat32}) {
      for (std::int64_t head_dim : {1, 7, 64, 80, 128, 256}) {
        for (std::int64_t num_partials : {1, 2, 3, 9, 40}) {
          MergeCase c;
          c.seed = cases.size() + 1;
          c.dtype = dtype;
          c.out_dtype = out_dtype;
          c.sizes = {static_cast<std::int64_t>(1 + c.seed % 6),
                     static_cast<std::int64_t>(1 + c.seed % 5), head_dim};
          c.num_partials = num_partials;
          c.row_gap = c.seed % 3 == 0 ? 3 : 0;
          c.with_lse = c.seed % 4 != 0;
          cases.push_back(c);
        }
      }
    }
  }
  for (double deviation : {100.0, 1e6, 1e30}) {
    MergeCase c;
    c.lse_deviation = deviation;
    c.num_partials = 4;
    cases.push_back(c);
  }
  for (DType dtype : kWide) {
    MergeCase c;
    c.dtype = c.out_dtype = dtype;
    c.absent_share = 1.0;
    cases.push_back(c);
  }
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{0, 4, 64}, {3, 0, 64}, {3, 4, 0}, {3000, 7, 64}}) {
    MergeCase c;
    c.sizes = sizes;
    cases.push_back(c);
  }
  testkit::expect_all_right(cases, run_merge);
}

TEST(GpuMerge, OutAndLseMayBeOneOfTheInputs) {
  for (std::size_t which : {0U, 1U, 2U}) {
    MergeCase c;
    c.num_partials = 3;
    c.absent_share = 0.3;
    testkit::MergeBatch batch(c);
    MergeArgs args = batch.args();
    const reference::MergeResult want = reference::merge_partials(args);
    args.out = args.partials[which];
    args.lse = args.lses[which];
    EXPECT_EQ(
        testkit::call_on_gpu(testkit::main_lane(), args,
                             [](const MergeArgs& a, const Execution& e) { merge_partials(a, e); }),
        "");
    EXPECT_EQ(testkit::check_merge(args.out, args.lse, want, "in place"), "");
  }
}

}  // namespace
}  // namespace hpcattn
