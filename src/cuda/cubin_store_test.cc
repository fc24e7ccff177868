// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/cubin_store.h"

#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "hpcattn/counters.h"
#include "hpcattn/cuda.h"
#include "src/cuda/prepare.h"
#include "src/cuda/test_fakes.h"

namespace hpcattn::cuda {
namespace {

const KernelVariant kVariant = {.name = "demo<{}>", .source = "one"};

/// The compilations of all processes that share the folder.
std::size_t compilations_in(const TemporaryFolder& folder) {
  return file_text(folder.path("log")).size();
}

void use_fakes_that_count(const TemporaryFolder& folder) {
  use_fakes(folder);
  set_variable("FAKE_NVRTC_LOG", folder.path("log"));
}

/// One more process, which asks for one variant.
void ask_in_a_child(const KernelVariant& variant, const std::string& arch) {
  const pid_t child = fork();
  if (child == 0) {
    _exit(find_cubin(variant, arch, 0).bytes == "cubin of " + variant.source ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(CubinStore, ASecondProcessFindsWhatTheFirstCompiled) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes_that_count(folder);
    for (int i = 0; i < 3; ++i) ask_in_a_child(kVariant, "sm_90a");
    EXPECT_EQ(compilations_in(folder), 1u);
    ask_in_a_child(kVariant, "sm_80");  // another GPU of the machine
    ask_in_a_child(kVariant, "sm_90a");
    EXPECT_EQ(compilations_in(folder), 2u);
    ask_in_a_child({.name = "demo<{}>", .source = "changed"}, "sm_90a");
    EXPECT_EQ(compilations_in(folder), 3u);
    set_variable("FAKE_NVRTC_VERSION", "128");  // another compiler
    ask_in_a_child(kVariant, "sm_90a");
    EXPECT_EQ(compilations_in(folder), 4u);
    EXPECT_EQ(CubinFolder::shipped(cache_path()).content().files, 4);
  });
}

TEST(CubinStore, TellsWhereAVariantLiesWithoutCompilingIt) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes_that_count(folder);
    EXPECT_EQ(cubin_place(kVariant, "sm_90a"), CubinPlace::kNowhere);
    EXPECT_EQ(compilations_in(folder), 0u);
    ask_in_a_child(kVariant, "sm_90a");
    EXPECT_EQ(cubin_place(kVariant, "sm_90a"), CubinPlace::kCached);
    EXPECT_EQ(cubin_place(kVariant, "sm_80"), CubinPlace::kNowhere);
    const std::string shipped = folder.path("shipped");
    write_shipped(kVariant, "sm_90a", shipped);
    set_variable("HPCATTN_CUBIN_DIR", shipped);
    EXPECT_EQ(cubin_place(kVariant, "sm_90a"), CubinPlace::kShipped);
  });
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes(folder);
    set_variable("HPCATTN_NVRTC", "/nowhere/libnvrtc.so");
    EXPECT_EQ(cubin_place(kVariant, "sm_90a"), CubinPlace::kNowhere);
  });
}

TEST(CubinStore, ManyProcessesAtOnce) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes_that_count(folder);
    set_variable("FAKE_NVRTC_MS", "30");
    std::vector<pid_t> children;
    for (int i = 0; i < 12; ++i) {
      children.push_back(fork());
      if (children.back() != 0) continue;
      bool right = true;
      for (const char* source : {"one", "two", "three"}) {
        const std::string bytes = find_cubin({.name = "demo", .source = source}, "sm_90a", 0).bytes;
        right = right && bytes == std::string("cubin of ") + source;
      }
      _exit(right ? 0 : 1);
    }
    for (const pid_t child : children) {
      int status = 1;
      waitpid(child, &status, 0);
      EXPECT_EQ(status, 0);
    }
    std::size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(cache_path())) {
      EXPECT_EQ(entry.path().extension(), ".cubin");
      ++files;
    }
    EXPECT_EQ(files, 3u);
  });
}

TEST(CubinStore, ThreadsWaitForOneCompilation) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes_that_count(folder);
    set_variable("FAKE_NVRTC_MS", "50");
    std::vector<std::thread> threads;
    std::vector<std::string> found(8);
    for (std::string& bytes : found) {
      threads.emplace_back([&bytes] { bytes = cubin_for(kVariant, "sm_90a"); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& bytes : found) EXPECT_EQ(bytes, "cubin of one");
    EXPECT_EQ(compilations_in(folder), 1u);
    EXPECT_EQ(counters()["compilations"], 1);
    ASSERT_EQ(compilations().size(), 1u);
    EXPECT_EQ(compilations()[0].name, "demo<{}>");
    EXPECT_EQ(compilations()[0].arch, "sm_90a");
    EXPECT_GE(compilations()[0].seconds, 0.05);
  });
}

TEST(CubinStore, WithoutACacheEachProcessCompilesOnce) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes_that_count(folder);
    write_text(folder.path("cache"), "a file, no folder");
    for (int i = 0; i < 2; ++i) EXPECT_EQ(cubin_for(kVariant, "sm_90a"), "cubin of one");
    EXPECT_EQ(compilations_in(folder), 1u);
    expect_contains(cache_problem(), "Not a directory");
    expect_contains(status_json(false), "Not a directory");
  });
}

TEST(CubinStore, ADamagedFileIsCompiledAgainAndReplaced) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes_that_count(folder);
    cubin_for(kVariant, "sm_90a");
    const std::string file =
        cache_path() + "/" + hex(cubin_key(kVariant, "sm_90a", 13, 0)) + ".cubin";
    const std::string good = file_text(file);
    for (const std::string& bad : {good.substr(0, 50), good + "x", std::string()}) {
      write_text(file, bad);
      EXPECT_EQ(cubin_for(kVariant, "sm_90a"), "cubin of one");
      EXPECT_EQ(file_text(file), good);
    }
    EXPECT_EQ(compilations_in(folder), 4u);
    EXPECT_EQ(cache_problem(), "");
  });
}

TEST(CubinStore, AFailureTellsTheLogAndIsNotKept) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes_that_count(folder);
    const KernelVariant bad = {.name = "bad<{.x = 3}>", .source = "an error"};
    for (int i = 0; i < 2; ++i) {
      const std::string text = thrown<DeviceError>([&] { cubin_for(bad, "sm_90a"); });
      expect_contains(text, "bad<{.x = 3}> does not compile for sm_90a (libnvrtc 13.0");
      expect_contains(text, "line 7: this is wrong");
    }
    EXPECT_EQ(compilations_in(folder), 2u);
    EXPECT_EQ(CubinFolder::shipped(cache_path()).content().files, 0);
  });
}

TEST(CubinStore, ShippedOnesNeedNoCompilerAndServeAnyVersion) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes_that_count(folder);
    EXPECT_GT(write_shipped(kVariant, "sm_90a", folder.path("shipped")), 0);
    EXPECT_EQ(compilations_in(folder), 1u);
    set_variable("FAKE_NVRTC_VERSION", "124");
    ask_in_a_child(kVariant, "sm_90a");
    EXPECT_EQ(compilations_in(folder), 1u);
    EXPECT_EQ(find_cubin(kVariant, "sm_90a", 13000).bytes, "cubin of one");
    EXPECT_EQ(compilations_in(folder), 1u);
    std::filesystem::remove_all(cache_path());
    find_cubin(kVariant, "sm_90a", 12080);  // made by 13.0: not for this driver
    EXPECT_EQ(compilations_in(folder), 2u);
    write_text(folder.path("none"), "");
    expect_contains(
        thrown<DeviceError>([&] { write_shipped(kVariant, "sm_90a", folder.path("none/x")); }),
        "Not a directory");
  });
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes(folder);
    CubinFolder to = CubinFolder::private_to_user(folder.path("shipped"));
    to.store(cubin_key(kVariant, "sm_90a", 0, 0), {.bytes = "built"});
    set_variable("HPCATTN_NVRTC", "/nowhere/libnvrtc.so");
    EXPECT_EQ(cubin_for(kVariant, "sm_90a"), "built");
  });
}

TEST(Prepare, LoadsAllWithProgressAndTellsTheFirstFailure) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes_that_count(folder);
    set_variable("FAKE_NVRTC_MS", "20");
    std::vector<KernelVariant> variants;
    for (int i = 0; i < 10; ++i) {
      variants.push_back({.name = "v" + std::to_string(i), .source = std::to_string(i)});
    }
    int calls = 0;
    prepare_kernels(
        variants, 0,
        [&](const Prepared& p) {
          EXPECT_EQ(p.done, ++calls);
          EXPECT_EQ(p.total, 10);
          EXPECT_TRUE(p.compiled) << p.name;
          EXPECT_GE(p.seconds, 0.02);
        },
        4);
    EXPECT_EQ(calls, 10);
    prepare_kernels(variants, 0, [](const Prepared& p) { EXPECT_FALSE(p.compiled) << p.name; }, 4);
    prepare_cubins(variants, "sm_90a");
    EXPECT_EQ(compilations_in(folder), 10u);
    prepare_kernels({}, 0);
    variants[4].source = "an error";
    expect_contains(thrown<DeviceError>([&] { prepare_kernels(variants, 0); }),
                    "v4 does not compile");
    expect_contains(thrown<DeviceError>([&] { prepare_kernels(variants, 9); }), "no device 9");
  });
}

}  // namespace
}  // namespace hpcattn::cuda
