// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/cubin_folder.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/cuda/test_fakes.h"

namespace hpcattn::cuda {
namespace {

const Sha256::Digest kKey = Sha256().add("key").finish();
const Cubin kCubin = {.bytes = "machine code", .nvrtc_major = 13, .nvrtc_minor = 1};
constexpr uid_t kNobody = 65534;

std::size_t files_in(const std::string& folder) {
  const std::filesystem::directory_iterator entries(folder);
  return std::size_t(std::distance(begin(entries), end(entries)));
}

TEST(CubinFile, OnlyWhatIsWholeIsRead) {
  const std::string file = encode_cubin(kKey, kCubin);
  const std::optional<Cubin> read = decode_cubin(kKey, file);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->bytes, kCubin.bytes);
  EXPECT_EQ(read->nvrtc_major, 13);
  EXPECT_EQ(read->nvrtc_minor, 1);
  for (std::size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(decode_cubin(kKey, std::string_view(file).substr(0, size))) << size;
  }
  EXPECT_FALSE(decode_cubin(kKey, file + "x"));
  EXPECT_FALSE(decode_cubin(Sha256().add("another").finish(), file));
  for (std::size_t i = 0; i < file.size(); ++i) {
    const bool is_version = i >= 48 && i < 56;  // told to people, not checked
    std::string damaged = file;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_EQ(decode_cubin(kKey, damaged).has_value(), is_version) << i;
  }
}

TEST(CubinFolder, KeepsAndIsPrivate) {
  const TemporaryFolder temporary;
  const std::string path = temporary.path("a/b/kernels");
  CubinFolder folder = CubinFolder::private_to_user(path);
  EXPECT_EQ(folder.problem(), "");
  EXPECT_FALSE(folder.load(kKey).has_value());
  EXPECT_TRUE(folder.try_write());
  EXPECT_TRUE(folder.store(kKey, kCubin));
  EXPECT_TRUE(folder.store(kKey, kCubin));
  EXPECT_EQ(folder.load(kKey)->bytes, kCubin.bytes);
  EXPECT_EQ(folder.content().files, 1);
  EXPECT_EQ(files_in(path), 1u);
  for (const char* name : {"a", "a/b", "a/b/kernels"}) {
    struct stat info{};
    ASSERT_EQ(stat(temporary.path(name).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u) << name;
  }
  EXPECT_EQ(CubinFolder::shipped(path).load(kKey)->bytes, kCubin.bytes);
  EXPECT_FALSE(CubinFolder::shipped(path + "/none").load(kKey).has_value());
}

TEST(CubinFolder, DamagedFilesAreIgnoredAndReplaced) {
  const TemporaryFolder temporary;
  CubinFolder folder = CubinFolder::private_to_user(temporary.path("kernels"));
  ASSERT_TRUE(folder.store(kKey, kCubin));
  const std::string file = temporary.path("kernels/" + hex(kKey) + ".cubin");
  const std::string good = file_text(file);
  for (const std::string& bad : {std::string(), good.substr(0, 20), good.substr(0, good.size() - 1),
                                 std::string(good.size(), 'x')}) {
    write_text(file, bad);
    EXPECT_FALSE(folder.load(kKey).has_value());
    ASSERT_TRUE(folder.store(kKey, kCubin));
    EXPECT_EQ(file_text(file), good);
  }
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  EXPECT_FALSE(folder.load(kKey).has_value());
  EXPECT_FALSE(folder.store(kKey, kCubin));
  EXPECT_EQ(files_in(temporary.path("kernels")), 1u);
}

TEST(CubinFolder, OfOthersOrOpenToOthersIsNotTrusted) {
  const TemporaryFolder temporary;
  const std::string path = temporary.path("kernels");
  ASSERT_TRUE(CubinFolder::private_to_user(path).store(kKey, kCubin));
  for (const unsigned mode : {0770u, 0777u, 0702u}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    CubinFolder folder = CubinFolder::private_to_user(path);
    expect_contains(folder.problem(), "can be written by other users");
    EXPECT_FALSE(folder.load(kKey).has_value());
    EXPECT_FALSE(folder.store(kKey, kCubin));
    EXPECT_FALSE(folder.try_write());
  }
  ASSERT_EQ(chmod(path.c_str(), 0700), 0);
  const bool is_root = geteuid() == 0;
  if (is_root) {
    ASSERT_EQ(chown(path.c_str(), kNobody, kNobody), 0);
  }
  CubinFolder foreign = CubinFolder::private_to_user(is_root ? path : "/usr");
  expect_contains(foreign.problem(), "not trusted");
  EXPECT_FALSE(foreign.load(kKey).has_value());
}

TEST(CubinFolder, ReadOnlyIsReadAndNeverAFailure) {
  in_new_process([] {
    const TemporaryFolder temporary;
    const std::string path = temporary.path("kernels");
    ASSERT_TRUE(CubinFolder::private_to_user(path).store(kKey, kCubin));
    // Permissions do not bind root.
    if (geteuid() == 0) {
      for (const std::string& each : {temporary.path(), path, path + "/" + hex(kKey) + ".cubin"}) {
        ASSERT_EQ(chown(each.c_str(), kNobody, kNobody), 0);
      }
      ASSERT_EQ(seteuid(kNobody), 0);
    }
    ASSERT_EQ(chmod(path.c_str(), 0500), 0);
    CubinFolder folder = CubinFolder::private_to_user(path);
    EXPECT_EQ(folder.load(kKey)->bytes, kCubin.bytes);
    EXPECT_EQ(folder.problem(), "");
    EXPECT_FALSE(folder.store(Sha256().add("new").finish(), kCubin));
    expect_contains(folder.problem(), "can not be kept: Permission denied");
    ASSERT_EQ(chmod(path.c_str(), 0700), 0);
    if (getuid() == 0) {
      ASSERT_EQ(seteuid(0), 0);
    }
  });
}

TEST(CubinFolder, AFullDiskIsNoFailureAndLeavesNothing) {
  in_new_process([] {
    const TemporaryFolder temporary;
    CubinFolder folder = CubinFolder::private_to_user(temporary.path("kernels"));
    // Where a file would grow past this the process gets SIGXFSZ, which ends it, or an error.
    const rlimit small{100, 100};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const Cubin large{.bytes = std::string(5000, 'x')};
    EXPECT_FALSE(folder.store(kKey, large));
    expect_contains(folder.problem(), "can not be kept: File too large");
    EXPECT_EQ(files_in(temporary.path("kernels")), 0u);
    EXPECT_FALSE(folder.try_write());
  });
}

TEST(CubinFolder, WhereThereCanBeNone) {
  const TemporaryFolder temporary;
  write_text(temporary.path("file"), "x");
  CubinFolder folder = CubinFolder::private_to_user(temporary.path("file/kernels"));
  expect_contains(folder.problem(), "Not a directory");
  EXPECT_FALSE(folder.store(kKey, kCubin));
  EXPECT_EQ(folder.content().files, 0);
  expect_contains(CubinFolder::private_to_user("").problem(), "HPCATTN_CACHE_DIR");
}

TEST(CubinFolder, WhatAKilledProcessLeftIsRemovedAfterADay) {
  in_new_process([] {  // looked for once a process
    const TemporaryFolder temporary;
    const std::string path = temporary.path("kernels");
    CubinFolder folder = CubinFolder::private_to_user(path);
    write_text(path + "/old.tmp", "x");
    write_text(path + "/new.tmp", "x");
    const std::array<timespec, 2> long_ago = {timespec{1'000'000, 0}, timespec{1'000'000, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, (path + "/old.tmp").c_str(), long_ago.data(), 0), 0);
    ASSERT_TRUE(folder.store(kKey, kCubin));
    EXPECT_FALSE(std::filesystem::exists(path + "/old.tmp"));
    EXPECT_TRUE(std::filesystem::exists(path + "/new.tmp"));
  });
}

TEST(CubinFolder, PlacesByEnvironment) {
  in_new_process([] {
    unsetenv("HPCATTN_CACHE_DIR");
    set_variable("HOME", "/home/someone");
    set_variable("XDG_CACHE_HOME", "not/absolute");
    EXPECT_EQ(cache_path(), "/home/someone/.cache/hpcattn/kernels");
    set_variable("XDG_CACHE_HOME", "/caches");
    EXPECT_EQ(cache_path(), "/caches/hpcattn/kernels");
    set_variable("HPCATTN_CACHE_DIR", "/mine");
    EXPECT_EQ(cache_path(), "/mine/kernels");
    unsetenv("HPCATTN_CUBIN_DIR");
    EXPECT_TRUE(shipped_path().ends_with("/cubins")) << shipped_path();
    set_variable("HPCATTN_CUBIN_DIR", "/built");
    EXPECT_EQ(shipped_path(), "/built");
  });
}

}  // namespace
}  // namespace hpcattn::cuda
