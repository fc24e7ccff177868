// SPDX-License-Identifier: Apache-2.0
// The device code of merge_partials, run on the CPU lane by lane, against the float64 reference.
#include "src/cuda/merge.h"

#include <gtest/gtest.h>

#include "kernels/merge/row.h"
#include "src/testing/host_team.h"
#include "src/testing/merge_case.h"

namespace hpcattn::cuda {
namespace {

using testkit::MergeCase;

template <MergeSpec kSpec>
void run_rows(const MergeParams& p) {
  testkit::HostTeam<MergeLane> team(merge_lanes(p.head_dim));
  for (std::int64_t row = 0; row < p.num_rows; ++row) merge_row<kSpec>(p, team, row);
}

void run_on_host(const MergeArgs& args) {
  const std::vector<MergeView> views = merge_views(args);
  MergeParams p = merge_params(args, views);
  if (views.size() > kMergeInline) p.more = views.data();
  const MergeSpec spec = merge_spec(args.partials[0].dtype(), args.out.dtype());
  constexpr DType kBf16 = DType::kBFloat16;
  constexpr DType kF16 = DType::kFloat16;
  constexpr DType kF32 = DType::kFloat32;
  if (spec == MergeSpec{kBf16, kBf16}) return run_rows<MergeSpec{kBf16, kBf16}>(p);
  if (spec == MergeSpec{kBf16, kF32}) return run_rows<MergeSpec{kBf16, kF32}>(p);
  if (spec == MergeSpec{kF16, kF16}) return run_rows<MergeSpec{kF16, kF16}>(p);
  if (spec == MergeSpec{kF16, kF32}) return run_rows<MergeSpec{kF16, kF32}>(p);
  run_rows<MergeSpec{kF32, kF32}>(p);
}

std::string check(const MergeCase& c) {
  return testkit::run_and_check_by(c, [](const MergeArgs& args) {
    run_on_host(args);
    return std::string();
  });
}

TEST(MergeDeviceCode, EveryDtypeShapeStrideAndNumberOfPartials) {
  std::uint64_t seed = 1;
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (DType out_dtype : {dtype, DType::kFloat32}) {
      for (std::int64_t head_dim : {1, 7, 64, 80, 256, 300}) {
        for (std::int64_t num_partials : {1, 2, 3, 9, 33, 70}) {
          MergeCase c;
          c.seed = seed++;
          c.dtype = dtype;
          c.out_dtype = out_dtype;
          c.sizes = {static_cast<std::int64_t>(1 + seed % 6),
                     static_cast<std::int64_t>(1 + seed % 5), head_dim};
          c.num_partials = num_partials;
          c.row_gap = seed % 3 == 0 ? 3 : 0;
          c.with_lse = seed % 4 != 0;
          EXPECT_EQ(check(c), "");
        }
      }
    }
  }
}

TEST(MergeDeviceCode, LsesFarApartAndAllAbsent) {
  for (double deviation : {100.0, 1e6, 1e30}) {
    MergeCase c;
    c.lse_deviation = deviation;
    c.num_partials = 4;
    EXPECT_EQ(check(c), "");
  }
  MergeCase absent;
  absent.absent_share = 1.0;
  EXPECT_EQ(check(absent), "");
}

TEST(MergeDeviceCode, OnePartialIsReturnedBitForBit) {
  MergeCase c;
  c.num_partials = 1;
  c.absent_share = 0.0;
  const testkit::MergeBatch batch(c);
  run_on_host(batch.args());
  EXPECT_EQ(batch.out.bytes(), batch.partials[0].bytes());
  EXPECT_EQ(batch.lse.bytes(), batch.lses[0].bytes());
}

TEST(MergeDeviceCode, OutAndLseMayBeOneOfTheInputs) {
  for (std::size_t which : {0U, 1U, 2U}) {
    MergeCase c;
    c.num_partials = 3;
    c.sizes = {5, 3, 300};
    const testkit::MergeBatch apart(c);
    run_on_host(apart.args());
    const testkit::MergeBatch alias(c);
    MergeArgs args = alias.args();
    args.out = args.partials[which];
    args.lse = args.lses[which];
    run_on_host(args);
    EXPECT_EQ(alias.partials[which].bytes(), apart.out.bytes());
    EXPECT_EQ(alias.lses[which].bytes(), apart.lse.bytes());
  }
}

TEST(MergeDeviceCode, EveryVariantIsListed) { EXPECT_EQ(all_merge_variants().size(), 5U); }

}  // namespace
}  // namespace hpcattn::cuda
