// SPDX-License-Identifier: Apache-2.0
#include "src/ops/support.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace hpcattn::ops {
namespace {

constexpr DType kAll[] = {DType::kFloat32,    DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3,
                          DType::kFloat8E5M2, DType::kInt32,   DType::kInt64,    DType::kUInt8};

TEST(SupportTest, HeadDims) {
  for (std::int64_t head_dim : {64, 80, 96, 128, 192, 256})
    EXPECT_TRUE(head_dim_supported(head_dim));
  for (std::int64_t head_dim : {-64, 0, 1, 63, 72, 112, 255, 512}) {
    EXPECT_FALSE(head_dim_supported(head_dim)) << head_dim;
  }
  EXPECT_EQ(supported_head_dims_text(), "64, 80, 96, 128, 192 or 256");
}

TEST(SupportTest, PageSizes) {
  for (std::int64_t page_size : {8, 16, 24, 48, 64, 256, 1000}) {
    EXPECT_TRUE(page_size_supported(page_size)) << page_size;
  }
  for (std::int64_t page_size : {-8, 0, 1, 4, 12, 20, 63}) {
    EXPECT_FALSE(page_size_supported(page_size)) << page_size;
  }
  EXPECT_EQ(supported_page_sizes_text(), "a multiple of 8");
  for (std::int64_t page_size : hopper_page_sizes()) EXPECT_TRUE(page_size_supported(page_size));
}

// The rule of attention.h, written out a second time: wide q takes its own dtype or fp8 KV and
// gives its own dtype or e4m3; an e4m3 q takes fp8 KV and gives any float but e5m2.
TEST(SupportTest, AttentionDTypesAreThoseOfTheHeader) {
  for (DType q : kAll) {
    for (DType kv : kAll) {
      for (DType out : kAll) {
        const bool wide =
            is_wide_float(q) && (kv == q || is_fp8(kv)) && (out == q || out == DType::kFloat8E4M3);
        const bool fp8 = q == DType::kFloat8E4M3 && is_fp8(kv) &&
                         (is_wide_float(out) || out == DType::kFloat8E4M3);
        EXPECT_EQ(attention_dtypes_supported(q, kv, out), wide || fp8)
            << name(q) << " " << name(kv) << " " << name(out);
      }
    }
  }
}

TEST(SupportTest, TextsNameWhatIsExpected) {
  EXPECT_EQ(attention_dtypes_text(DType::kBFloat16),
            "with a bfloat16 q: K and V bfloat16, float8_e4m3 or float8_e5m2, "
            "out bfloat16 or float8_e4m3");
  EXPECT_EQ(attention_dtypes_text(DType::kInt32), "q float32, float16, bfloat16 or float8_e4m3");
  EXPECT_EQ(store_dtypes_text(DType::kFloat16),
            "with a float16 k: a cache of float16, float8_e4m3 or float8_e5m2");
  EXPECT_EQ(store_dtypes_text(DType::kFloat8E4M3), "k and v float32, float16 or bfloat16");
}

TEST(SupportTest, StoreTakesWideValuesIntoTheirOwnDTypeOrFp8) {
  for (DType k : kAll) {
    for (DType cache : kAll) {
      EXPECT_EQ(store_dtypes_supported(k, cache), is_wide_float(k) && (cache == k || is_fp8(cache)))
          << name(k) << " " << name(cache);
    }
  }
}

TEST(SupportTest, WhatCanBeStoredCanBeRead) {
  for (const AttentionDTypes& row : attention_dtype_table()) {
    if (is_fp8(row.q)) continue;
    for (DType kv : row.kv) EXPECT_TRUE(store_dtypes_supported(row.q, kv));
  }
}

}  // namespace
}  // namespace hpcattn::ops
