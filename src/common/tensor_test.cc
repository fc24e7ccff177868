// SPDX-License-Identifier: Apache-2.0
#include "hpcattn/tensor.h"

#include <gtest/gtest.h>

#include <vector>

#include "hpcattn/error.h"

namespace hpcattn {
namespace {

TEST(Tensor, NotGiven) {
  const Tensor none;
  EXPECT_FALSE(none.defined());
  EXPECT_EQ(none.num_elements(), 0);
  EXPECT_EQ(to_string(none), "not given");
}

TEST(Tensor, ContiguousAndViews) {
  std::vector<float> data(24);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = float(i);
  const Tensor t = Tensor::contiguous(data.data(), DType::kFloat32, {2, 3, 4});
  EXPECT_TRUE(t.is_contiguous());
  EXPECT_EQ(t.stride(0), 12);
  EXPECT_EQ(t.size(-1), 4);
  EXPECT_EQ(t.num_elements(), 24);
  EXPECT_EQ(to_string(t), "float32[2, 3, 4] on cpu");

  const Tensor part = t.slice(1, 1, 2);
  EXPECT_EQ(*part.data_as<float>(), 4.0F);
  EXPECT_EQ(part.size(1), 2);
  EXPECT_FALSE(part.is_contiguous());

  const Tensor second = t.select(0, 1);
  EXPECT_EQ(second.rank(), 2);
  EXPECT_EQ(*second.data_as<float>(), 12.0F);
  EXPECT_EQ(second.size(0), 3);
  EXPECT_EQ(second.stride(0), 4);
}

TEST(Tensor, BadShapesAreRefused) {
  const std::int64_t sizes[] = {2, 3};
  const std::int64_t one_stride[] = {1};
  EXPECT_THROW(Tensor(nullptr, DType::kInt32, sizes, one_stride), InvalidArgument);
  EXPECT_THROW(Tensor::contiguous(nullptr, DType::kInt32, {1, 1, 1, 1, 1, 1, 1}), InvalidArgument);
  EXPECT_THROW(Tensor::contiguous(nullptr, DType::kInt32, {-1}), InvalidArgument);
  const Tensor t = Tensor::contiguous(nullptr, DType::kInt32, {4});
  EXPECT_THROW(t.slice(0, 3, 2), InvalidArgument);
  EXPECT_THROW(t.select(0, 4), InvalidArgument);
}

TEST(Tensor, Devices) {
  EXPECT_EQ(to_string(Device{DeviceType::kCuda, 1}), "cuda:1");
  EXPECT_EQ(to_string(Device{}), "cpu");
}

TEST(DType, SizesAndNames) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3,
                            DType::kFloat8E5M2, DType::kInt32, DType::kInt64, DType::kUInt8}) {
    EXPECT_GT(size_bytes(dtype), 0);
    EXPECT_NE(name(dtype), "unknown");
  }
}

}  // namespace
}  // namespace hpcattn
