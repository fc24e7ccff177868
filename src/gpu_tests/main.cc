// SPDX-License-Identifier: Apache-2.0
// Tests that need a GPU. Without one nothing runs: the reason is printed, and the exit status is
// 77, which CTest shows as "skipped".
#include <gtest/gtest.h>

#include <cstdio>

#include "src/testing/gpu.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::string& reason = hpcattn::testkit::why_no_gpu();
  if (!reason.empty() && !testing::GTEST_FLAG(list_tests)) {
    constexpr int kSkipped = 77;
    std::printf("SKIPPED: %s\n", reason.c_str());
    return kSkipped;
  }
  if (reason.empty()) std::printf("GPU 0: %s\n", hpcattn::testkit::gpu_name().c_str());
  return RUN_ALL_TESTS();
}
