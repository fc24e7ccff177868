// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/compile.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "hpcattn/cuda.h"
#include "src/cuda/nvrtc.h"
#include "src/cuda/sources.h"
#include "src/cuda/test_fakes.h"

namespace hpcattn::cuda {
namespace {

TEST(CudaTarget, NearestThatTheCompilerKnows) {
  const std::vector<int> cuda13 = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};
  const std::vector<int> cuda12 = {50, 60, 70, 75, 80, 86, 89, 90};
  EXPECT_EQ(target_of("sm_90a", cuda13).option, "sm_90a");
  EXPECT_EQ(target_of("sm_100a", cuda13).option, "sm_100a");
  EXPECT_EQ(target_of("sm_86", cuda12).option, "sm_86");
  EXPECT_EQ(target_of("sm_87", cuda12).option, "sm_86");
  EXPECT_FALSE(target_of("sm_87", cuda12).is_ptx);
  EXPECT_EQ(target_of("sm_104", cuda13).option, "sm_103");
  EXPECT_EQ(target_of("sm_100a", cuda12).option, "compute_90");
  EXPECT_TRUE(target_of("sm_100a", cuda12).is_ptx);
  EXPECT_EQ(target_of("sm_130", cuda13).option, "compute_121");
}

TEST(CudaSources, EmbeddedUnderTheNamesOfTheirIncludes) {
  std::vector<std::string> names;
  for (const EmbeddedSource& source : embedded_sources()) names.emplace_back(source.name);
  for (const char* name : {"kernels/tile/fault.h", "cstdint", "algorithm", "src/plan/layout.h",
                           "src/plan/rows.h", "hpcattn/dtype_id.h"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  }
}

TEST(CudaSources, IncludesAreFollowed) {
  const auto names_of = [](const char* source) {
    std::string names;
    for (const EmbeddedSource& s : included_sources(source)) names += std::string(s.name) + " ";
    return names;
  };
  EXPECT_EQ(names_of("#include \"src/plan/rows.h\"\nint x;"), "algorithm cstdint src/plan/rows.h ");
  EXPECT_EQ(names_of("  #  include <cstdint>"), "cstdint ");
  EXPECT_EQ(names_of("// #include <cstdint>\n#include \"nothing.h\"\n#includ\n#include x\n#inc"),
            "");
  EXPECT_EQ(names_of(""), "");
}

TEST(CudaSources, AFolderOfOnesOwnTakesTheirPlace) {
  in_new_process([] {
    const TemporaryFolder folder;
    std::filesystem::create_directories(folder.path("src/plan"));
    write_text(folder.path("src/plan/rows.h"), "#include \"kernels/tile/fault.h\"");
    set_variable("HPCATTN_KERNEL_DIR", folder.path());
    const std::vector<EmbeddedSource> found = included_sources("#include \"src/plan/rows.h\"");
    ASSERT_EQ(found.size(), 3u);
    EXPECT_STREQ(found[0].name, "cstdint");
    EXPECT_STREQ(found[1].name, "kernels/tile/fault.h");
    EXPECT_STREQ(found[2].text, "#include \"kernels/tile/fault.h\"");
  });
}

TEST(Nvrtc, MissingOnesAreListedWithTheWayOut) {
  in_new_process([] {
    set_variable("HPCATTN_NVRTC", "/nowhere/libnvrtc.so.13");
    const std::string text = thrown<DeviceError>([] { nvrtc(); });
    expect_contains(text, "/nowhere/libnvrtc.so.13");
    expect_contains(text, "pip install nvidia-cuda-nvrtc");
    expect_contains(text, "HPCATTN_NVRTC");
  });
}

TEST(Nvrtc, TooOldIsPassedOver) {
  in_new_process([] {
    use_fakes({});
    set_variable("FAKE_NVRTC_VERSION", "118");
    expect_contains(thrown<DeviceError>([] { nvrtc(); }), "version 11.8, expected 12.3 or newer");
  });
}

TEST(Nvrtc, OrderOfTheSearch) {
  in_new_process([] {
    unsetenv("HPCATTN_NVRTC");
    set_nvrtc_paths({HPCATTN_FAKE_LIBNVRTC, "/nowhere/libnvrtc.so.12"});
    const std::vector<std::string> files = nvrtc_candidates();
    ASSERT_GE(files.size(), 3u);
    EXPECT_EQ(files[0], HPCATTN_FAKE_LIBNVRTC);  // /nowhere/ is not there
    EXPECT_EQ(files[1], "libnvrtc.so.13");
    EXPECT_EQ(nvrtc().library.path(), HPCATTN_FAKE_LIBNVRTC);
  });
}

/// With the real compiler, where HPCATTN_NVRTC names one.
class RealNvrtc : public testing::Test {
 protected:
  void SetUp() override {
    const char* named = std::getenv("HPCATTN_NVRTC");
    if (named == nullptr || *named == '\0') {
      GTEST_SKIP() << "HPCATTN_NVRTC names no libnvrtc (tests/python/test_cuda_runtime.py does)";
    }
    set_variable("HPCATTN_CACHE_DIR", folder_.path("cache"));
  }
  ~RealNvrtc() override { unsetenv("HPCATTN_CACHE_DIR"); }

  static KernelVariant variant(const std::string& name) {
    return {.name = name, .source = R"(
#include "hpcattn/dtype_id.h"
#include "kernels/tile/fault.h"
#include "src/plan/device_layout.h"
#include "src/plan/rows.h"
struct Params { float* out; long long n; };
extern "C" __global__ void __launch_bounds__(128)
hpcattn_kernel(const __grid_constant__ Params p) {
  const auto range = hpcattn::plan::visible({true, 5}, threadIdx.x, p.n);
  p.out[threadIdx.x] = float(range.end);
} // )" + name + "\n"};
  }

  TemporaryFolder folder_;
};

TEST_F(RealNvrtc, CompilesTheSharedHeadersForEachArch) {
  for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120"}) {
    const std::string bytes = compile(variant("shared"), arch);
    const bool is_ptx = target_of(arch, nvrtc().archs).is_ptx;
    EXPECT_EQ(bytes.substr(0, 4), is_ptx ? "//\n/"
                                         : "\x7f"
                                           "ELF")
        << arch;
  }
}

TEST_F(RealNvrtc, ErrorsNameTheVariantAndTheLine) {
  KernelVariant bad = variant("broken<{.x = 1}>");
  bad.source += "int f() { return nothing; }\n";
  const std::string text = thrown<DeviceError>([&] { compile(bad, "sm_90a"); });
  expect_contains(text, "broken<{.x = 1}> does not compile for sm_90a");
  expect_contains(text, "identifier \"nothing\" is undefined");
}

TEST_F(RealNvrtc, FromTheCacheInAFewMilliseconds) {
  const std::string bytes = cubin_for(variant("cached"), "sm_90a");
  const std::size_t before = compilations().size();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(cubin_for(variant("cached"), "sm_90a"), bytes);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 0.05);  // it takes one
  EXPECT_EQ(compilations().size(), before);
}

TEST_F(RealNvrtc, ThreadsCompileSideBySide) {
  std::vector<std::thread> threads;
  std::vector<std::string> found(4);
  for (std::size_t i = 0; i < found.size(); ++i) {
    threads.emplace_back(
        [&, i] { found[i] = compile(variant("v" + std::to_string(i)), "sm_90a"); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& bytes : found) EXPECT_FALSE(bytes.empty());
}

}  // namespace
}  // namespace hpcattn::cuda
