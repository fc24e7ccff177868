// SPDX-License-Identifier: Apache-2.0
#include "hpcattn/backend/kv_cache.h"

#include <gtest/gtest.h>

#include <numeric>

#include "hpcattn/error.h"
#include "src/backend/test_layer.h"

namespace hpcattn {
namespace {

TEST(KvCacheTest, DTypeNames) {
  EXPECT_EQ(parse_kv_cache_dtype("auto", DType::kFloat16), DType::kFloat16);
  EXPECT_EQ(parse_kv_cache_dtype("float32", DType::kFloat16), DType::kFloat32);
  EXPECT_EQ(parse_kv_cache_dtype("float16", DType::kBFloat16), DType::kFloat16);
  EXPECT_EQ(parse_kv_cache_dtype("bfloat16", DType::kFloat16), DType::kBFloat16);
  EXPECT_EQ(parse_kv_cache_dtype("fp8", DType::kFloat16), DType::kFloat8E4M3);
  EXPECT_EQ(parse_kv_cache_dtype("fp8_e4m3", DType::kFloat16), DType::kFloat8E4M3);
  EXPECT_EQ(parse_kv_cache_dtype("fp8_e5m2", DType::kFloat16), DType::kFloat8E5M2);
  for (const char* other : {"", "int8", "fp8_inc", "FP8", "nvfp4"}) {
    EXPECT_EQ(parse_kv_cache_dtype(other, DType::kFloat16), std::nullopt) << other;
  }
}

// Each form, filled with its own flat numbers: the views must find K and V of (page, token, head,
// dim) where the form's description says they lie.
TEST(KvCacheTest, ViewsOfEachLayout) {
  constexpr std::int64_t kPages = 3, kPage = 8, kHeads = 2, kDim = 64;
  std::vector<float> memory(kPages * 2 * kPage * kHeads * kDim);
  std::iota(memory.begin(), memory.end(), 0.0F);
  for (KvCacheLayout layout : HpcAttentionBackend::supported_kv_cache_layouts()) {
    const auto shape = HpcAttentionBackend::kv_cache_shape(kPages, kPage, kHeads, kDim, layout);
    const Tensor flat = Tensor::contiguous(memory.data(), DType::kFloat32, shape);
    const Tensor cache =
        testkit::in_order(flat, shape, HpcAttentionBackend::kv_cache_stride_order(false, layout));
    const KvCacheViews views = split_kv_cache(cache, kHeads, kDim, DType::kFloat32);
    for (int of_v = 0; of_v < 2; ++of_v) {
      const Tensor& view = of_v == 1 ? views.v : views.k;
      ASSERT_EQ(to_string(view), "float32[3, 8, 2, 64] on cpu");
      for (std::int64_t page : {0, 2}) {
        for (std::int64_t token : {0, 7}) {
          for (std::int64_t head : {0, 1}) {
            std::int64_t want = 0;
            if (layout == KvCacheLayout::kNhd) {
              want = (((page * 2 + of_v) * kPage + token) * kHeads + head) * kDim + 5;
            } else if (layout == KvCacheLayout::kHnd) {
              want = (((page * 2 + of_v) * kHeads + head) * kPage + token) * kDim + 5;
            } else {
              want = ((page * kHeads + head) * kPage + token) * 2 * kDim + of_v * kDim + 5;
            }
            EXPECT_EQ(view.data_as<float>()[testkit::offset_of(view, {page, token, head, 5})],
                      float(want))
                << name(layout) << " page " << page << " token " << token << " head " << head;
          }
        }
      }
    }
  }
}

TEST(KvCacheTest, BytesStandForFp8) {
  std::vector<std::uint8_t> memory(2 * 2 * 8 * 64);
  const Tensor cache = Tensor::contiguous(memory.data(), DType::kUInt8, {2, 2, 8, 1, 64});
  EXPECT_EQ(split_kv_cache(cache, 1, 64, DType::kFloat8E5M2).v.dtype(), DType::kFloat8E5M2);
  EXPECT_THROW(split_kv_cache(cache, 1, 64, DType::kFloat16), InvalidArgument);
}

TEST(KvCacheTest, RefusalsNameTheShapeThatIsExpected) {
  std::vector<float> memory(2 * 2 * 8 * 2 * 64);
  const auto message_of = [&](std::initializer_list<std::int64_t> sizes) -> std::string {
    try {
      split_kv_cache(Tensor::contiguous(memory.data(), DType::kFloat32, sizes), 2, 64,
                     DType::kFloat32);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(message_of({2, 3, 8, 2, 64}),
            "split_kv_cache: kv_cache is float32[2, 3, 8, 2, 64] on cpu, expected [num_pages, 2, "
            "page_size, 2, 64].");
  EXPECT_EQ(
      message_of({2, 2, 8, 64}),
      "split_kv_cache: kv_cache is float32[2, 2, 8, 64] on cpu, expected [num_pages, 2, page_size, "
      "2, 64] or [num_pages, 2, page_size, 128].");
  EXPECT_THROW(split_kv_cache({}, 2, 64, DType::kFloat32), InvalidArgument);
}

}  // namespace
}  // namespace hpcattn
