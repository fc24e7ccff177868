// SPDX-License-Identifier: Apache-2.0
#include "src/ops/overlap.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <vector>

#include "src/testing/guarded_tensor.h"

namespace hpcattn::ops {
namespace {

std::array<float, 4096> memory;

Tensor view(std::int64_t offset, std::vector<std::int64_t> sizes,
            std::vector<std::int64_t> strides) {
  return {memory.data() + offset, DType::kFloat32, sizes, strides};
}

TEST(Overlap, SlicesOfOneTensorAreApart) {
  const Tensor whole = Tensor::contiguous(memory.data(), DType::kFloat32, {4, 3, 2, 8});
  EXPECT_FALSE(may_share_memory(whole.select(1, 0), whole.select(1, 2)));
  EXPECT_TRUE(may_share_memory(whole.select(1, 1), whole.select(1, 1)));
  EXPECT_TRUE(same_view(whole.select(1, 1), whole.select(1, 1)));
  EXPECT_FALSE(same_view(whole.select(1, 1), whole.select(1, 0)));
  EXPECT_TRUE(may_share_memory(whole.slice(0, 0, 2), whole.slice(0, 1, 2)));
  EXPECT_FALSE(may_share_memory(whole.slice(0, 0, 2), whole.slice(0, 2, 2)));
}

TEST(Overlap, UnlikeDtypesOrStridesMeetWhereTheirRangesDo) {
  const Tensor floats = Tensor::contiguous(memory.data(), DType::kFloat32, {8});
  const Tensor halves = Tensor::contiguous(memory.data(), DType::kFloat16, {8});
  const Tensor past = Tensor::contiguous(memory.data() + 8, DType::kFloat16, {8});
  EXPECT_TRUE(may_share_memory(floats, halves));
  EXPECT_FALSE(may_share_memory(floats, past));
  EXPECT_FALSE(may_share_memory(floats, Tensor()));
  EXPECT_FALSE(may_share_memory(floats, floats.slice(0, 3, 0)));
  EXPECT_FALSE(may_share_memory(floats.slice(0, 3, 0), floats));
}

TEST(Overlap, AgreesWithCountingElementsOnRandomViews) {
  testkit::Rng rng(7);
  int apart = 0;
  for (int round = 0; round < 4000; ++round) {
    const std::int64_t inner = rng.integer(1, 4);
    const std::int64_t middle = rng.integer(1, 4);
    const std::int64_t inner_gap = rng.integer(0, 4);
    const std::int64_t middle_stride = inner + inner_gap;
    const std::int64_t outer_stride = (middle - 1) * middle_stride + inner + rng.integer(0, 12);
    const std::vector<std::int64_t> sizes = {rng.integer(1, 4), middle, inner};
    const std::vector<std::int64_t> strides = {outer_stride, middle_stride, 1};
    const Tensor a = view(200, sizes, strides);
    const Tensor b = view(200 + rng.integer(-60, 60), sizes, strides);
    std::set<const float*> elements;
    testkit::for_each_index(a, [&](const std::vector<std::int64_t>& index, std::int64_t) {
      elements.insert(a.data_as<float>() + testkit::offset_of(a, index));
    });
    bool shared = false;
    testkit::for_each_index(b, [&](const std::vector<std::int64_t>& index, std::int64_t) {
      shared |= elements.count(b.data_as<float>() + testkit::offset_of(b, index)) > 0;
    });
    ASSERT_EQ(may_share_memory(a, b), shared) << "round " << round;
    apart += shared ? 0 : 1;
  }
  EXPECT_GT(apart, 500);
  EXPECT_LT(apart, 3500);
}

}  // namespace
}  // namespace hpcattn::ops
