// SPDX-License-Identifier: Apache-2.0
// What of the generic attention kernel is arithmetic: its shared memory, the order of dims in its
// products, and its division.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "kernels/generic/attention/config.h"
#include "kernels/generic/attention/fragments.h"
#include "kernels/tile/fast_divide.h"
#include "src/cuda/attention.h"
#include "src/ops/support.h"

namespace hpcattn {
namespace {

constexpr std::int64_t kSystemBytes = 1024;  // that each cta takes besides its own

struct Arch {
  const char* name;
  std::int64_t bytes_per_sm;
  std::int64_t bytes_per_cta;
};

// NVIDIA, CUDA C++ Programming Guide, technical specifications.
constexpr Arch kArchs[] = {{"sm_80", 164 * 1024, 163 * 1024},   {"sm_86", 100 * 1024, 99 * 1024},
                           {"sm_89", 100 * 1024, 99 * 1024},    {"sm_90a", 228 * 1024, 227 * 1024},
                           {"sm_100a", 228 * 1024, 227 * 1024}, {"sm_120", 100 * 1024, 99 * 1024}};

template <typename Visit>
void for_each_spec(const Visit& visit) {
  for (const Arch& arch : kArchs) {
    for (const std::int64_t head_dim : ops::supported_head_dims()) {
      for (const ops::AttentionDTypes& row : ops::attention_dtype_table()) {
        if (row.q == DType::kFloat32) continue;
        for (const DType kv : row.kv) {
          AttentionSpec spec;
          spec.head_dim = static_cast<int>(head_dim);
          spec.q_dtype = row.q;
          spec.kv_dtype = kv;
          spec.shared_budget = cuda::shared_budget(arch.name);
          visit(arch, spec);
        }
      }
    }
  }
}

TEST(AttentionLayout, EverySpecFitsEveryArchitecture) {
  for_each_spec([](const Arch& arch, const AttentionSpec& spec) {
    const AttentionLayout layout = attention_layout(spec);
    SCOPED_TRACE(cuda::variant_of(spec).name);
    EXPECT_TRUE(layout.fits(spec.head_dim));
    EXPECT_LE(layout.shared_bytes(), arch.bytes_per_cta);
    EXPECT_LE(layout.shared_bytes(), spec.shared_budget);
    EXPECT_GE(layout.narrow.slots, 2);
    EXPECT_GE(layout.wide.slots, 2);
    EXPECT_EQ(plan::kDeviceTileKv % layout.wide.tile_kv, 0);
  });
}

TEST(AttentionLayout, TwoCtasShareAMultiprocessorWhereThereIsRoom) {
  for_each_spec([](const Arch& arch, const AttentionSpec& spec) {
    if (arch.bytes_per_sm < 160 * 1024) return;
    const std::int64_t both = 2 * (attention_layout(spec).shared_bytes() + kSystemBytes);
    EXPECT_LE(both, arch.bytes_per_sm) << arch.name << " head_dim " << spec.head_dim;
  });
}

TEST(AttentionLayout, EightRowsLieInUnlikeBanks) {
  for (int row_bytes = 64; row_bytes <= 512; row_bytes += 16) {
    const int stride = padded_row_bytes(row_bytes);
    EXPECT_GE(stride, row_bytes);
    EXPECT_EQ(stride % 16, 0);
    for (int column = 0; column < row_bytes; column += 16) {
      std::set<int> groups;  // of four banks
      for (int row = 0; row < 8; ++row) groups.insert((row * stride + column) / 16 % 8);
      EXPECT_EQ(groups.size(), 8U) << row_bytes;
    }
  }
}

/// The two pairs of positions that lane t holds of a contraction over 16.
TEST(AttentionFragments, Fp8KeysMeetTheirQueries) {
  for (int t = 0; t < 4; ++t) {
    // The lane's bytes of K are dims 4t .. 4t + 3; their pairs stand at places t and t + 4.
    EXPECT_EQ(2 * fp8_pair_at(t), 4 * t);
    EXPECT_EQ(2 * fp8_pair_at(t + 4), 4 * t + 2);
  }
  for (int place = 0; place < 8; ++place) EXPECT_EQ(fp8_place_of_pair(fp8_pair_at(place)), place);
}

TEST(AttentionFragments, EveryOutputDimIsWrittenOnce) {
  for (const bool fp8 : {false, true}) {
    for (const int head_dim : {64, 80, 96, 128, 192, 256}) {
      std::set<int> dims;
      for (int tile = 0; tile < head_dim / 8; ++tile) {
        for (int column = 0; column < 8; ++column) dims.insert(output_dim(tile, column, fp8));
      }
      EXPECT_EQ(dims.size(), static_cast<std::size_t>(head_dim));
      EXPECT_EQ(*dims.begin(), 0);
      EXPECT_EQ(*dims.rbegin(), head_dim - 1);
    }
  }
}

TEST(AttentionFragments, ALanesNeighboursArePairs) {
  for (int tile = 0; tile < 16; tile += 2) {
    for (int t = 0; t < 4; ++t) {
      // for_each_pair stores two elements at once.
      EXPECT_EQ(output_dim(tile, 2 * t, false) + 1, output_dim(tile, 2 * t + 1, false));
      EXPECT_EQ(output_dim(tile, 2 * t, true) + 1, output_dim(tile + 1, 2 * t, true));
      EXPECT_EQ(output_dim(tile, 2 * t, true) % 2, 0);
    }
  }
}

TEST(FastDivide, EqualsDivision) {
  std::mt19937 random(3);
  std::uniform_int_distribution<std::int32_t> any(0, INT32_MAX);
  std::vector<std::uint32_t> divisors = {1,  2,  3,    5,     7,        8,        16,
                                         24, 64, 1000, 65535, 1U << 30, INT32_MAX};
  for (int i = 0; i < 200; ++i) divisors.push_back(static_cast<std::uint32_t>(any(random)) | 1U);
  for (const std::uint32_t divisor : divisors) {
    const FastDivide fast(divisor);
    const auto d = static_cast<std::int32_t>(divisor);
    std::vector<std::int32_t> dividends = {0, 1, d - 1, d, INT32_MAX - 1, INT32_MAX};
    for (int i = 0; i < 200; ++i) {
      const std::int32_t n = any(random);
      dividends.push_back(n);
      dividends.push_back(n / d * d);  // and its neighbour below, where rounding would show
      dividends.push_back(std::max(n / d * d - 1, 0));
    }
    for (const std::int32_t n : dividends) ASSERT_EQ(fast.divide(n), n / d) << n << " / " << d;
  }
}

}  // namespace
}  // namespace hpcattn
