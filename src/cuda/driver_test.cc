// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/driver.h"

#include <sys/wait.h>
#include <unistd.h>

#include "hpcattn/cuda.h"
#include "src/cuda/device.h"
#include "src/cuda/test_fakes.h"

namespace hpcattn::cuda {
namespace {

TEST(CudaDriver, MissingLibraryIsNamedWithWhatIsNeeded) {
  in_new_process([] {
    set_variable("HPCATTN_LIBCUDA", "/nowhere/libcuda.so.1");
    const std::string text = thrown<DeviceError>([] { device_info(0); });
    expect_contains(text, "no NVIDIA driver");
    expect_contains(text, "/nowhere/libcuda.so.1");
    expect_contains(text, "Install one of CUDA 12.0");
  });
}

TEST(CudaDriver, LibraryWithoutItsFunctionsIsRefused) {
  in_new_process([] {
    set_variable("HPCATTN_LIBCUDA", HPCATTN_FAKE_LIBNVRTC);
    expect_contains(thrown<DeviceError>([] { device_info(0); }), "has no cuInit");
  });
}

TEST(CudaDriver, TooOldIsToldWithBothVersions) {
  in_new_process([] {
    use_fakes({});
    set_variable("FAKE_CUDA_VERSION", "11080");
    const std::string text = thrown<DeviceError>([] { device_info(0); });
    expect_contains(text, "is of CUDA 11.8, expected 12.0");
    expect_contains(text, "Update the NVIDIA driver");
  });
}

TEST(CudaDriver, FailureToStartNamesTheError) {
  in_new_process([] {
    use_fakes({});
    set_variable("FAKE_CUDA_INIT", "100");
    expect_contains(thrown<DeviceError>([] { device_count(); }), "CUDA_ERROR_NO_DEVICE (100");
  });
}

TEST(CudaDevice, PropertiesAndRefusals) {
  in_new_process([] {
    use_fakes({});
    const DeviceInfo& info = device_info(1);
    EXPECT_EQ(info.index, 1);
    EXPECT_EQ(info.name, "Fake GPU");
    EXPECT_EQ(info.major, 9);
    EXPECT_EQ(info.minor, 0);
    EXPECT_EQ(info.num_sms, 132);
    EXPECT_EQ(info.shared_bytes_per_cta, 232448);
    EXPECT_EQ(device_count(), 2);
    EXPECT_EQ(driver_cuda_version(), "13.0");
    for (const int device : {2, -1, 1000}) {
      expect_contains(thrown<DeviceError>([&] { device_info(device); }), "this process sees 2");
    }
  });
}

TEST(CudaDevice, TooOldCapability) {
  in_new_process([] {
    use_fakes({});
    set_variable("FAKE_CUDA_CAPABILITY", "75");
    expect_contains(thrown<Unsupported>([] { device_info(0); }),
                    "compute capability 7.5, expected 8.0");
  });
}

TEST(CudaDevice, GuardPushesOnlyWhatIsNotCurrentAndPutsItBack) {
  in_new_process([] {
    use_fakes({});
    device_info(0);
    device_info(1);
    const FakeCuda cuda = fake();
    cuda.take_log();
    {
      const DeviceGuard outer(0);
      const DeviceGuard again(0);
      const DeviceGuard other(1);
      EXPECT_STREQ(cuda.take_log(), "push 0\npush 1\n");
    }
    EXPECT_STREQ(cuda.take_log(), "pop 1\npop 0\n");
    Context current = nullptr;
    driver().current_context(&current);
    EXPECT_EQ(current, nullptr);
  });
}

/// The exit status of a forked child that runs `body`.
template <typename Body>
int forked(const Body& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

TEST(CudaFork, BeforeTheFirstUseIsFineAndAfterItIsAnError) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes(folder);
    status_json(false);
    EXPECT_EQ(forked([] { return device_info(0).major; }), 9);
    device_info(0);
    const auto refused = [] {
      const std::string text = thrown<DeviceError>([] { device_info(0); });
      const std::string guard = thrown<DeviceError>([] { const DeviceGuard made(0); });
      return text.find("forked") != std::string::npos && guard == text ? 7 : 1;
    };
    EXPECT_EQ(forked(refused), 7);
    EXPECT_EQ(device_info(0).major, 9);
  });
}

TEST(CudaStatus, WithAndWithoutDriver) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes(folder);
    expect_contains(status_json(false), "\"driver\": null");
    expect_contains(status_json(true), "\"name\": \"Fake GPU\", \"capability\": \"9.0\"");
    expect_contains(status_json(true), "\"version\": \"13.0\"");
    expect_contains(status_json(true), folder.path("cache/kernels"));
  });
  in_new_process([] {
    set_variable("HPCATTN_LIBCUDA", "/nowhere/libcuda.so.1");
    set_variable("HPCATTN_NVRTC", "/nowhere/libnvrtc.so");
    const std::string text = status_json(true);
    expect_contains(text, "no NVIDIA driver");
    expect_contains(text, "/nowhere/libnvrtc.so");
  });
}

}  // namespace
}  // namespace hpcattn::cuda
