// SPDX-License-Identifier: Apache-2.0
// The device code of rope_norm_store_kv, run on the CPU lane by lane, against the float64
// reference: all but the launch and the shuffles. And what the launch is given.
#include "src/cuda/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "kernels/fused/rope/rows.h"
#include "src/testing/host_team.h"
#include "src/testing/rope_case.h"

namespace hpcattn::cuda {
namespace {

using testkit::HostTeam;
using testkit::RopeBatch;
using testkit::RopeCase;

/// As kernel.cuh does, one team after the other.
template <RopeSpec kSpec>
void run_teams(const RopeParams& p) {
  for (std::int64_t token = 0; token < p.num_tokens; ++token) {
    HostTeam<RopeLane> team(rope_lanes(p.head_dim));
    const int step = kSpec.norm == RopeNorm::kToken ? p.num_rows() : p.rows_per_team;
    for (int first = 0; first < p.num_rows(); first += step) {
      rope_rows<kSpec>(p, team, token, {first, std::min(first + step, p.num_rows()), 1});
    }
  }
}

template <DType kDType>
void run_norm(const RopeParams& p, RopeNorm norm) {
  switch (norm) {
    case RopeNorm::kNone: return run_teams<RopeSpec{kDType, RopeNorm::kNone}>(p);
    case RopeNorm::kHead: return run_teams<RopeSpec{kDType, RopeNorm::kHead}>(p);
    case RopeNorm::kToken: return run_teams<RopeSpec{kDType, RopeNorm::kToken}>(p);
  }
}

Fault run_on_host(const RopeNormStoreKvArgs& args, int num_sms = 1) {
  Fault fault;
  const RopeParams p = rope_params(args, num_sms, &fault);
  const RopeSpec spec = rope_spec(args.q.dtype(), args.norm_policy, args.norm_scope);
  constexpr std::int64_t kClearing = 64;
  for (std::int64_t thread = 0; thread < kClearing; ++thread) clear_counters(p, thread, kClearing);
  switch (spec.dtype) {
    case DType::kFloat16: run_norm<DType::kFloat16>(p, spec.norm); break;
    case DType::kBFloat16: run_norm<DType::kBFloat16>(p, spec.norm); break;
    default: run_norm<DType::kFloat32>(p, spec.norm);
  }
  return fault;
}

std::string check(const RopeCase& c, int num_sms = 1) {
  return RopeBatch(c).run_and_check_by([&](const RopeNormStoreKvArgs& args) {
    const Fault fault = run_on_host(args, num_sms);
    return fault.kind == 0 ? std::string() : "fault " + std::to_string(fault.kind) + "\n";
  });
}

TEST(RopeDeviceCode, EveryDtypePolicyScopeAndStyle) {
  int number = 0;
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (DType cache_dtype : {dtype, DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      for (auto policy :
           {QkNormPolicy::kNone, QkNormPolicy::kRopeThenNorm, QkNormPolicy::kNormThenRope}) {
        for (NormScope scope : {NormScope::kHead, NormScope::kToken}) {
          for (RopeStyle style : {RopeStyle::kNeox, RopeStyle::kInterleaved}) {
            for (auto q_output : {testkit::QOutput::kOwn, testkit::QOutput::kInPlace,
                                  testkit::QOutput::kFp8Dynamic, testkit::QOutput::kFp8Static}) {
              RopeCase c;
              c.seed = static_cast<std::uint64_t>(++number);
              c.dtype = dtype;
              c.cache_dtype = cache_dtype;
              c.policy = policy;
              c.scope = scope;
              c.style = style;
              c.q_output = q_output;
              c.head_dim = number % 2 == 0 ? 128 : 80;
              c.rotary_dim = number % 3 == 0 ? 32 : c.head_dim;
              EXPECT_EQ(check(c), "");
            }
          }
        }
      }
    }
  }
}

TEST(RopeDeviceCode, AnyFeaturesTogether) {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    ASSERT_EQ(check(testkit::random_rope_case(seed), seed % 2 == 0 ? 1 : 100), "") << seed;
  }
}

TEST(RopeDeviceCode, AnyRotaryDim) {
  for (int rotary_dim = 0; rotary_dim <= 96; rotary_dim += 2) {
    for (RopeStyle style : {RopeStyle::kNeox, RopeStyle::kInterleaved}) {
      for (auto policy :
           {QkNormPolicy::kNone, QkNormPolicy::kRopeThenNorm, QkNormPolicy::kNormThenRope}) {
        RopeCase c;
        c.seed = static_cast<std::uint64_t>(rotary_dim + 1);
        c.head_dim = 96;
        c.rotary_dim = rotary_dim;
        c.style = style;
        c.policy = policy;
        c.dtype = rotary_dim % 4 == 0 ? DType::kBFloat16 : DType::kFloat32;
        c.cache_dtype = c.dtype;
        EXPECT_EQ(check(c), "") << rotary_dim;
      }
    }
  }
}

TEST(RopeDeviceCode, WhatContradictsItselfIsReportedAndNotWritten) {
  struct Row {
    FaultKind kind;
    std::int64_t first_value;
    std::function<void(RopeNormStoreKvArgs&)> spoil;
  };
  const auto far = testkit::GuardedTensor::of_ints(std::vector<std::int32_t>(26, 1 << 20));
  const auto pages = testkit::GuardedTensor::of_ints(std::vector<std::int32_t>(64, 1 << 20));
  const auto lengths =
      testkit::GuardedTensor::of_ints(std::vector<std::int32_t>{5, 1 << 20, 3, 25});
  const std::vector<Row> rows = {
      {FaultKind::kLength, 3, [&](auto& args) { args.positions = far; }},
      {FaultKind::kLength, 2, [&](auto& args) { args.slot_mapping = far; }},
      {FaultKind::kPageId, 0,
       [&](auto& args) {
         args.page_table =
             Tensor::contiguous(pages.tensor().data(), DType::kInt32, {4, 16}, args.q.device());
       }},
      {FaultKind::kLength, 1,
       [&](auto& args) {
         args.kv_lens = lengths;
         args.positions = args.slot_mapping = {};
       }},
  };
  for (const Row& row : rows) {
    RopeCase c;
    c.given_positions = true;
    c.padding_tokens = 2;
    RopeBatch batch(c);
    RopeNormStoreKvArgs args = batch.args();
    row.spoil(args);
    const Fault fault = run_on_host(args);
    EXPECT_EQ(static_cast<FaultKind>(fault.kind), row.kind);
    EXPECT_EQ(fault.values[0], row.first_value);
    if (row.kind == FaultKind::kPageId) {
      EXPECT_TRUE(batch.pool().untouched());
    }
  }
}

TEST(RopeDeviceCode, RequestsAreFound) {
  for (const std::vector<std::int64_t>& lengths :
       {std::vector<std::int64_t>{1, 1, 1, 1}, {0, 5, 0, 0, 2, 1, 0}, {7}, {3, 3, 3}, {100, 1}}) {
    std::vector<std::int64_t> cu = {0};
    for (std::int64_t length : lengths) cu.push_back(cu.back() + length);
    const auto num_requests = static_cast<std::int64_t>(lengths.size());
    for (std::int64_t padding : {0, 3}) {
      for (std::int64_t token = 0; token < cu.back(); ++token) {
        const std::int64_t found =
            request_of([&](std::int64_t i) { return cu[static_cast<std::size_t>(i)]; }, token,
                       cu.back() + padding, num_requests);
        EXPECT_LE(cu[static_cast<std::size_t>(found)], token);
        EXPECT_LT(token, cu[static_cast<std::size_t>(found) + 1]);
      }
    }
  }
}

TEST(RopeDeviceCode, QuotientsAreThoseOfRoundedDivisions) {
  testkit::Rng rng(1);
  for (int i = 0; i < 200000; ++i) {
    const double x = std::ldexp(rng.real(1.0, 2.0), static_cast<int>(rng.integer(-126, 127)));
    const auto scale = static_cast<double>(static_cast<float>(
        std::ldexp(rng.real(1.0, 2.0), static_cast<int>(rng.integer(-126, 127)))));
    ASSERT_EQ(divided(x, scale, 1.0 / scale), x / scale) << x << " / " << scale;
  }
  EXPECT_EQ(divided(HUGE_VAL, 3.0, 1.0 / 3.0), HUGE_VAL);
  EXPECT_EQ(divided(-HUGE_VAL, 3.0, 1.0 / 3.0), -HUGE_VAL);
  EXPECT_EQ(divided(0.0, 3.0, 1.0 / 3.0), 0.0);
  EXPECT_TRUE(std::isnan(divided(std::nan(""), 3.0, 1.0 / 3.0)));
}

TEST(RopeDeviceCode, EveryVariantIsListedOnce) {
  std::set<std::string> names;
  for (const KernelVariant& variant : all_rope_variants()) names.insert(variant.name);
  EXPECT_EQ(names.size(), 9U);
  EXPECT_EQ(names.count("rope_norm_store_kv<{.dtype = bfloat16, .norm = kHead}>"), 1U);
}

}  // namespace
}  // namespace hpcattn::cuda
