// SPDX-License-Identifier: Apache-2.0
// Tests that need a GPU. Without one every test is skipped, with the reason.
#include <gtest/gtest.h>

#include <cstdio>

#include "src/testing/gpu.h"

namespace {

class NeedsGpu : public testing::Environment {
 public:
  void SetUp() override {
    const std::string& reason = hpcattn::testkit::why_no_gpu();
    if (!reason.empty()) GTEST_SKIP() << reason;
    std::printf("GPU 0: %s\n", hpcattn::testkit::gpu_name().c_str());
  }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::AddGlobalTestEnvironment(new NeedsGpu);
  return RUN_ALL_TESTS();
}
