// SPDX-License-Identifier: Apache-2.0
// Tests of the runtime over stand-ins of libcuda and libnvrtc (tests/fake_cuda). The libraries are
// opened once a process, so a test that needs its own runs in a process of its own.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "hpcattn/error.h"
#include "tests/fake_cuda/fake_libcuda.h"

namespace hpcattn::cuda {

/// What failed in this process so far, on stderr: that is what a death test shows of its child.
inline void show_failures() {
  const testing::TestResult& result =
      *testing::UnitTest::GetInstance()->current_test_info()->result();
  for (int i = 0; i < result.total_part_count(); ++i) {
    const testing::TestPartResult& part = result.GetTestPartResult(i);
    if (part.failed()) std::cerr << "line " << part.line_number() << ": " << part.message() << '\n';
  }
}

/// Runs `body` in a new process, where its expectations must hold.
template <typename Body>
void in_new_process(const Body& body) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        body();
        show_failures();
        std::exit(testing::Test::HasFailure() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

/// A folder that is gone at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "hpcattn-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path() const { return path_; }
  std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline void set_variable(const char* name, const std::string& value) {
  ASSERT_EQ(setenv(name, value.c_str(), 1), 0);
}

/// From now on, in this process, the libraries are the stand-ins, and the caches are in `folder`.
inline void use_fakes(const TemporaryFolder& folder) {
  set_variable("HPCATTN_LIBCUDA", HPCATTN_FAKE_LIBCUDA);
  set_variable("HPCATTN_NVRTC", HPCATTN_FAKE_LIBNVRTC);
  set_variable("HPCATTN_CACHE_DIR", folder.path("cache"));
  set_variable("HPCATTN_CUBIN_DIR", folder.path("shipped"));
}

inline FakeCuda fake() {
  FakeCuda functions;
  void* library = dlopen(HPCATTN_FAKE_LIBCUDA, RTLD_NOW);
  using Get = void (*)(FakeCuda*);
  if (const auto get = reinterpret_cast<Get>(dlsym(library, "fake_cuda"))) get(&functions);
  return functions;
}

/// What `call` throws as an Error of type E, else "nothing was thrown".
template <typename E, typename Call>
std::string thrown(const Call& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in:\n" << text;
}

inline std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace hpcattn::cuda
