// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "hpcattn/error.h"
#include "src/cuda/device.h"
#include "src/cuda/test_fakes.h"

namespace hpcattn::cuda {
namespace {

constexpr Device kGpu{DeviceType::kCuda, 0};

template <typename T>
void expect_filled(DType dtype, std::uint32_t pattern) {
  // A 2 x 3 x 4 view with gaps, axes swapped, in a buffer of 7s.
  std::vector<T> buffer(200, T(7));
  const std::array<std::int64_t, 3> sizes = {2, 3, 4};
  const std::array<std::int64_t, 3> strides = {5, 40, 1};
  fill_pattern(Tensor(buffer.data(), dtype, sizes, strides, kGpu), pattern, {});
  std::vector<T> expected(200, T(7));
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::size_t j = 0; j < 3; ++j) {
      for (std::size_t k = 0; k < 4; ++k) expected[i * 5 + j * 40 + k] = T(pattern);
    }
  }
  EXPECT_EQ(buffer, expected);
}

TEST(CudaMemory, FillOfAnyStrides) {
  in_new_process([] {
    use_fakes({});
    expect_filled<std::uint8_t>(DType::kUInt8, 0x7f);
    expect_filled<std::uint16_t>(DType::kBFloat16, 0xff80);
    expect_filled<std::uint32_t>(DType::kFloat32, 0xff800000);

    std::vector<std::uint16_t> buffer(24, 7);
    fill_pattern(Tensor::contiguous(buffer.data(), DType::kFloat16, {2, 3, 4}, kGpu), 9, {});
    EXPECT_EQ(buffer, std::vector<std::uint16_t>(24, 9));
    // No dimension without gaps, one repeated, one alone.
    const std::array<std::int64_t, 3> sizes = {4, 3, 1};
    const std::array<std::int64_t, 3> strides = {6, 0, 1};
    fill_pattern(Tensor(buffer.data(), DType::kFloat16, sizes, strides, kGpu), 1, {});
    for (std::size_t i = 0; i < 24; ++i) EXPECT_EQ(buffer[i], i % 6 == 0 ? 1 : 9);
    fill_pattern(Tensor::contiguous(nullptr, DType::kFloat16, {0, 4}, kGpu), 1, {});
    EXPECT_THROW(fill_pattern(Tensor::contiguous(buffer.data(), DType::kInt64, {1}, kGpu), 1, {}),
                 InvalidArgument);
  });
}

TEST(CudaMemory, HostCopyOfAnyStrides) {
  in_new_process([] {
    use_fakes({});
    std::vector<std::int32_t> buffer(100);
    std::iota(buffer.begin(), buffer.end(), 0);
    const std::array<std::int64_t, 2> sizes = {3, 4};
    for (const std::array<std::int64_t, 2>& strides :
         {std::array<std::int64_t, 2>{4, 1}, {10, 1}, {1, 20}, {7, 3}}) {
      const HostCopy copy(Tensor(buffer.data(), DType::kInt32, sizes, strides, kGpu), {});
      ASSERT_TRUE(copy.tensor().is_contiguous());
      EXPECT_EQ(copy.tensor().device(), Device{});
      for (int i = 0; i < 3; ++i) {
        for (int j = 0; j < 4; ++j) {
          EXPECT_EQ(copy.tensor().data_as<std::int32_t>()[i * 4 + j],
                    i * strides[0] + j * strides[1]);
        }
      }
    }
    EXPECT_EQ(HostCopy(Tensor::contiguous(nullptr, DType::kInt32, {0}, kGpu), {}).tensor().size(0),
              0);
    fake().set_capturing(1);
    const auto copy = [&] {
      HostCopy(Tensor::contiguous(buffer.data(), DType::kInt32, {2}, kGpu), {});
    };
    expect_contains(thrown<InvalidArgument>(copy), "while the stream is captured");
  });
}

TEST(CudaMemory, ACapturedCopyKeepsItsOwnSource) {
  in_new_process([] {
    use_fakes({});
    const int value = 5;
    int on_device = 0;
    copy_to_device(&on_device, &value, sizeof(value), 0, {});
    EXPECT_EQ(on_device, 5);
    std::ostringstream own;
    own << "copy from " << &value;
    expect_contains(fake().take_log(), own.str());
    fake().set_capturing(1);
    copy_to_device(&on_device, &value, sizeof(value), 0, {});
    EXPECT_EQ(std::string(fake().take_log()).find(own.str()), std::string::npos);
  });
}

TEST(CudaMemory, WorkspaceFromTheDriverOrTheCaller) {
  in_new_process([] {
    use_fakes({});
    device_info(0);
    fake().take_log();
    {
      const Workspace none({}, 0, 0);
      EXPECT_EQ(none.data(), nullptr);
      const Workspace some({}, 0, 512);
      EXPECT_NE(some.data(), nullptr);
    }
    EXPECT_STREQ(fake().take_log(), "alloc 512\nfree\n");
    char memory[16];
    const Workspace given({.allocate = [&](std::size_t) { return memory; }}, 0, 16);
    EXPECT_EQ(given.data(), memory);
    EXPECT_STREQ(fake().take_log(), "");
    const auto nothing = [] {
      Workspace({.allocate = [](std::size_t) { return nullptr; }}, 0, 16);
    };
    expect_contains(thrown<DeviceError>(nothing), "16 bytes of workspace on device 0");
    fake().fail("cuMemAllocAsync", 2);
    expect_contains(thrown<DeviceError>([] { Workspace({}, 0, 4096); }),
                    "no memory for 4096 bytes of workspace on device 0");
  });
}

}  // namespace
}  // namespace hpcattn::cuda
