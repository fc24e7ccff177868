// SPDX-License-Identifier: Apache-2.0
#include <thread>
#include <vector>

#include "src/cuda/cubin_store.h"
#include "src/cuda/kernel.h"
#include "src/cuda/kernel_table.h"
#include "src/cuda/test_fakes.h"

namespace hpcattn::cuda {
namespace {

struct Params {
  int value = 0;
};

const KernelVariant kVariant = {.name = "demo<{.x = 1}>", .source = "one", .threads = 96};

TEST(CudaLaunch, LoadsOnceADeviceAndPassesWhatWasAsked) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes(folder);
    const Kernel& kernel = load_kernel(0, kVariant);
    EXPECT_EQ(&load_kernel(0, kVariant), &kernel);
    EXPECT_EQ(kernel.name(), kVariant.name);
    EXPECT_EQ(kernel.device(), 0);
    EXPECT_STREQ(fake().take_log(), "push 0\npop 0\npush 0\nload cubin of one\npop 0\n");
    EXPECT_NE(&load_kernel(1, kVariant), &kernel);
    fake().take_log();
    const Execution execution{.stream = reinterpret_cast<void*>(5)};
    launch(kernel, {3, 2, 1}, execution, Params{42});
    EXPECT_STREQ(fake().take_log(), "launch 3x2x1 96 0 5 42\n");
    launch(kernel, {0, 2, 1}, execution, Params{});
    launch(kernel, {1, 0, 1}, execution, Params{});
    EXPECT_STREQ(fake().take_log(), "");
    launch(kernel, {3, 1, 1}, execution, Params{}, true);
    EXPECT_STREQ(fake().take_log(), "launch_ex 3x1x1 attribute 6 1\n");
  });
}

TEST(CudaLaunch, ProgrammaticIsPlainBeforeHopper) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes(folder);
    set_variable("FAKE_CUDA_CAPABILITY", "80");
    const Kernel& kernel = load_kernel(0, kVariant);
    fake().take_log();
    launch(kernel, {3, 1, 1}, {}, Params{9}, true);
    EXPECT_STREQ(fake().take_log(), "launch 3x1x1 96 0 0 9\n");
  });
}

TEST(CudaLaunch, SharedMemoryPastTheDefaultIsAskedFor) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes(folder);
    KernelVariant variant = kVariant;
    variant.shared_bytes = 48 * 1024;
    load_kernel(0, variant);
    EXPECT_EQ(std::string(fake().take_log()).find("attribute 8"), std::string::npos);
    variant.shared_bytes = 100'000;
    load_kernel(0, variant);
    expect_contains(fake().take_log(), "attribute 8 100000");
    fake().fail("cuFuncSetAttribute", 1);
    variant.shared_bytes = 300'000;
    const std::string text = thrown<DeviceError>([&] { load_kernel(0, variant); });
    expect_contains(text, "demo<{.x = 1}> asks for 300000 bytes of shared memory a cta");
    expect_contains(text, "has 232448");
  });
}

TEST(CudaLaunch, FailureNamesVariantGridAndSharedMemory) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes(folder);
    KernelVariant variant = kVariant;
    variant.shared_bytes = 1000;
    const Kernel& kernel = load_kernel(1, variant);
    fake().fail("cuLaunchKernel", 700);
    const std::string text = thrown<DeviceError>([&] { launch(kernel, {7, 8, 9}, {}, Params{}); });
    expect_contains(text, "the launch of demo<{.x = 1}> on device 1 failed");
    expect_contains(text, "grid 7x8x9, 96 threads and 1000 bytes of shared memory");
    expect_contains(text, "CUDA_ERROR_ILLEGAL_ADDRESS (700, an illegal memory access");
    expect_contains(text, "HPCATTN_DEVICE_CHECKS=1");
  });
}

TEST(CudaLaunch, ADriverThatDoesNotTakeTheCodeIsToldWhatMadeIt) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes(folder);
    set_variable("FAKE_CUDA_VERSION", "12040");
    device_info(0);
    fake().fail("cuModuleLoadData", 209);
    const std::string text = thrown<DeviceError>([] { load_kernel(0, kVariant); });
    expect_contains(text, "demo<{.x = 1}> could not be loaded on device 0 (Fake GPU, sm_90a)");
    expect_contains(text, "CUDA_ERROR_NO_BINARY_FOR_GPU");
    expect_contains(text, "made by libnvrtc 13.0, the driver knows CUDA 12.4");
    fake().fail("cuModuleLoadData", 0);
    EXPECT_EQ(load_kernel(0, kVariant).name(), kVariant.name);
  });
}

TEST(CudaLaunch, TableMakesNoTextAfterTheFirstCall) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes(folder);
    struct Spec {
      int x = 0;
      bool operator==(const Spec&) const = default;
    };
    KernelTable<Spec> table;
    std::atomic<int> made{0};
    const auto variant_of = [&](const Spec& spec) {
      ++made;
      return KernelVariant{.name = "table", .source = std::to_string(spec.x)};
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int x = 0; x < 3; ++x) table.get(x % 2, {x}, variant_of);
      });
    }
    for (std::thread& thread : threads) thread.join();
    const int before = made;
    EXPECT_EQ(&table.get(0, {2}, variant_of), &table.get(0, {2}, variant_of));
    EXPECT_EQ(made, before);
  });
}

TEST(CudaArch, OfDevices) {
  EXPECT_EQ(arch_of({.major = 8, .minor = 0}), "sm_80");
  EXPECT_EQ(arch_of({.major = 8, .minor = 9}), "sm_89");
  EXPECT_EQ(arch_of({.major = 9, .minor = 0}), "sm_90a");
  EXPECT_EQ(arch_of({.major = 10, .minor = 0}), "sm_100a");
  EXPECT_EQ(arch_of({.major = 10, .minor = 3}), "sm_103");
  EXPECT_EQ(arch_of({.major = 12, .minor = 0}), "sm_120");
}

}  // namespace
}  // namespace hpcattn::cuda
