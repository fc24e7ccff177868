// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/buffer.h"

#include <vector>

#include "src/cuda/test_fakes.h"

namespace hpcattn::cuda {
namespace {

TEST(CudaBuffer, LivesAsLongAsItsLastCopy) {
  in_new_process([] {
    use_fakes({});
    std::shared_ptr<void> buffer = device_buffer(1, 64);
    expect_contains(fake().take_log(), "buffer 64");
    std::shared_ptr<void> copy = buffer;
    buffer.reset();
    EXPECT_EQ(std::string(fake().take_log()).find("free buffer"), std::string::npos);
    const std::vector<int> numbers{1, 2, 3};
    upload(copy.get(), numbers.data(), 3 * sizeof(int), 1);
    EXPECT_EQ(static_cast<const int*>(copy.get())[2], 3);
    copy.reset();
    expect_contains(fake().take_log(), "free buffer");
    EXPECT_NE(device_buffer(0, 0).get(), nullptr);
  });
}

TEST(CudaBuffer, FailuresAreTold) {
  in_new_process([] {
    use_fakes({});
    fake().fail("cuMemAlloc_v2", 2);
    expect_contains(thrown<DeviceError>([] { device_buffer(1, 1 << 20); }),
                    "cuda: no memory for a buffer of 1048576 bytes on device 1");
    fake().fail("cuStreamSynchronize", 700);
    int to = 0;
    const int from = 1;
    expect_contains(thrown<DeviceError>([&] { upload(&to, &from, sizeof(int), 0); }),
                    "cuda: waiting for a copy failed");
  });
}

}  // namespace
}  // namespace hpcattn::cuda
