// SPDX-License-Identifier: Apache-2.0
#include "src/ops/overlap.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <vector>

#include "hpcattn/error.h"
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

// K and V of a layer, laid out apart, as halves and interleaved.
TEST(Overlap, KAndVOfOnePoolAreApart) {
  const std::vector<std::int64_t> sizes = {3, 8, 2, 16};
  const std::vector<std::int64_t> halves = {512, 32, 16, 1};
  EXPECT_FALSE(may_share_memory(view(0, sizes, halves), view(256, sizes, halves)));
  EXPECT_TRUE(may_share_memory(view(0, sizes, halves), view(240, sizes, halves)));
  const std::vector<std::int64_t> interleaved = {512, 32, 256, 1};
  EXPECT_FALSE(may_share_memory(view(0, sizes, interleaved), view(16, sizes, interleaved)));
  EXPECT_TRUE(may_share_memory(view(0, sizes, interleaved), view(15, sizes, interleaved)));
}

// Rows of 8 in steps of 24, and rows of 4 in steps of 36: they first meet at 72.
TEST(Overlap, UnlikeStridesAreSolvedExactly) {
  const Tensor rows = view(0, {20, 8}, {24, 1});
  EXPECT_FALSE(may_share_memory(rows, view(8, {2, 4}, {36, 1})));
  EXPECT_TRUE(may_share_memory(rows, view(8, {3, 4}, {32, 1})));
  EXPECT_TRUE(may_share_memory(rows, view(84, {3, 4}, {-36, 1})));
}

TEST(Overlap, EmptyTensorsShareNothing) {
  EXPECT_FALSE(may_share_memory(view(0, {0, 8}, {8, 1}), view(0, {4, 8}, {8, 1})));
  EXPECT_FALSE(may_share_memory(view(0, {4, 8}, {8, 1}), view(0, {4, 0}, {8, 1})));
}

TEST(Overlap, StridesThatLeaveTheAddressSpaceAreRefused) {
  for (std::int64_t stride :
       {std::int64_t{1} << 61, std::int64_t{-1} << 61, std::int64_t{1} << 55}) {
    const Tensor wild = view(0, {3, 8}, {stride, 1});
    EXPECT_THROW(may_share_memory(wild, view(0, {4, 8}, {8, 1})), InvalidArgument) << stride;
  }
}

TEST(Overlap, OutputsMustBeApartButInPlaceIsFine) {
  const Tensor a = view(0, {4, 8}, {16, 1});
  const Tensor b = view(8, {4, 8}, {16, 1});
  const Tensor shifted = view(4, {4, 8}, {16, 1});
  const Tensor missing;
  const std::array<NamedTensor, 2> outputs{{{"out", &a}, {"none", &missing}}};
  const std::array<NamedTensor, 2> apart{{{"in", &b}, {"none", &missing}}};
  EXPECT_NO_THROW(check_outputs_apart("op", outputs, apart));
  const std::array<NamedTensor, 1> overlapping{{{"in", &shifted}}};
  EXPECT_THROW(check_outputs_apart("op", outputs, overlapping), InvalidArgument);
  const std::array<InPlacePair, 1> shifted_pair{{{&a, &shifted}}};
  EXPECT_THROW(check_outputs_apart("op", outputs, overlapping, shifted_pair), InvalidArgument);

  const Tensor same = a;
  const std::array<NamedTensor, 1> in_place{{{"in", &same}}};
  EXPECT_THROW(check_outputs_apart("op", outputs, in_place), InvalidArgument);
  const std::array<InPlacePair, 1> pair{{{&a, &same}}};
  EXPECT_NO_THROW(check_outputs_apart("op", outputs, in_place, pair));

  const Tensor folded = view(0, {4, 8}, {7, 1});
  const std::array<NamedTensor, 1> folded_output{{{"out", &folded}}};
  EXPECT_THROW(check_outputs_apart("op", folded_output, {}), InvalidArgument);
}

}  // namespace
}  // namespace hpcattn::ops
