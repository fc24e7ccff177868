// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/cubin_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <system_error>
#include <utility>

#include "src/common/check.h"
#include "src/cuda/shared_library.h"

namespace hpcattn::cuda {
namespace {

std::string error_text(int error) { return std::generic_category().message(error); }

/// Where a limit of the file size ends the process by a signal, the write fails instead.
class NoSizeSignal {
 public:
  NoSizeSignal() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~NoSizeSignal() {
    if (sigismember(&before_, SIGXFSZ) == 0) {
      const timespec at_once{};
      sigtimedwait(&signal_, nullptr, &at_once);
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSizeSignal(const NoSizeSignal&) = delete;
  NoSizeSignal& operator=(const NoSizeSignal&) = delete;

 private:
  sigset_t signal_;
  sigset_t before_;
};

bool write_all(int fd, const std::string& bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t wrote = write(fd, bytes.data() + done, bytes.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    done += std::size_t(wrote);
  }
  return true;
}

std::optional<std::string> read_all(int fd) {
  struct stat info{};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size <= 0) return std::nullopt;
  std::string bytes(std::size_t(info.st_size), '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = read(fd, bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    done += std::size_t(got);
  }
  return bytes;
}

std::string file_name(const Sha256::Digest& key) { return hex(key) + ".cubin"; }

std::string temporary_name(const std::string& name) {
  static std::atomic<int> count{0};
  return message(name, ".", getpid(), ".", count++, ".tmp");
}

/// Makes the folder, and those above it, for this user alone.
void make_folder(const std::string& path) {
  for (std::size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1)) {
    mkdir(path.substr(0, at).c_str(), 0700);
  }
  mkdir(path.c_str(), 0700);
}

template <typename Visit>
void for_each_file(int folder_fd, std::string_view suffix, const Visit& visit) {
  if (folder_fd < 0) return;
  const int fd = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* folder = fd < 0 ? nullptr : fdopendir(fd);
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder)) {
    struct stat info{};
    if (!std::string_view(entry->d_name).ends_with(suffix)) continue;
    if (fstatat(folder_fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0) {
      visit(entry->d_name, info);
    }
  }
  closedir(folder);
}

std::string value_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

std::string home() {
  std::string named = value_of("HOME");
  if (named.starts_with('/')) return named;
  std::array<char, 4096> buffer{};
  passwd entry{};
  passwd* found = nullptr;
  getpwuid_r(geteuid(), &entry, buffer.data(), buffer.size(), &found);
  return found == nullptr || found->pw_dir == nullptr ? "" : found->pw_dir;
}

}  // namespace

CubinFolder CubinFolder::private_to_user(const std::string& path) {
  CubinFolder folder;
  if (path.empty()) {
    folder.problem_ = "there is no home folder: set HPCATTN_CACHE_DIR";
    return folder;
  }
  make_folder(path);
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    folder.problem_ = message(path, ": ", error_text(errno));
    return folder;
  }
  struct stat info{};
  const bool known = fstat(fd, &info) == 0;
  if (!known || info.st_uid != geteuid()) {
    folder.problem_ = message(path, " belongs to user ", info.st_uid, ", this process runs as ",
                              geteuid(), ": not trusted");
  } else if ((info.st_mode & 022) != 0) {
    folder.problem_ = message(path, " can be written by other users: not trusted (chmod 700)");
  }
  if (!folder.problem_.empty()) {
    close(fd);
    return folder;
  }
  folder.fd_ = fd;
  return folder;
}

CubinFolder CubinFolder::shipped(const std::string& path) {
  CubinFolder folder;
  folder.fd_ = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder.fd_ < 0) folder.problem_ = message(path, ": ", error_text(errno));
  return folder;
}

CubinFolder::~CubinFolder() {
  if (fd_ >= 0) close(fd_);
}

CubinFolder::CubinFolder(CubinFolder&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), problem_(std::move(other.problem_)) {}

std::optional<Cubin> CubinFolder::load(const Sha256::Digest& key) const {
  if (fd_ < 0) return std::nullopt;
  const int fd = openat(fd_, file_name(key).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  const std::optional<std::string> bytes = read_all(fd);
  close(fd);
  return bytes ? decode_cubin(key, *bytes) : std::nullopt;
}

bool CubinFolder::store(const Sha256::Digest& key, const Cubin& cubin) {
  if (fd_ < 0) return false;
  static std::once_flag once;
  std::call_once(once, [this] { remove_abandoned(); });
  const std::string name = file_name(key);
  const std::string temporary = temporary_name(name);
  if (write_file(temporary, encode_cubin(key, cubin)) &&
      renameat(fd_, temporary.c_str(), fd_, name.c_str()) == 0) {
    return true;
  }
  return note_failure(temporary);
}

bool CubinFolder::try_write() {
  if (fd_ < 0) return false;
  const std::string temporary = temporary_name("try");
  if (!write_file(temporary, std::string(4096, '\0'))) return note_failure(temporary);
  unlinkat(fd_, temporary.c_str(), 0);
  return true;
}

bool CubinFolder::note_failure(const std::string& temporary) {
  problem_ = message("kernels can not be kept: ", error_text(errno));
  unlinkat(fd_, temporary.c_str(), 0);
  return false;
}

bool CubinFolder::write_file(const std::string& name, const std::string& bytes) const {
  const int fd = openat(fd_, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  const NoSizeSignal no_signal;
  const bool written = write_all(fd, bytes);
  const int error = errno;
  const bool closed = close(fd) == 0;  // where a disk of a network is full, this is what tells
  if (!written) errno = error;
  return written && closed;
}

CubinFolder::Content CubinFolder::content() const {
  Content content;
  for_each_file(fd_, ".cubin", [&](const char*, const struct stat& info) {
    ++content.files;
    content.bytes += info.st_size;
  });
  return content;
}

/// What processes left that were ended while they wrote.
void CubinFolder::remove_abandoned() const {
  constexpr std::time_t kDay = 86'400;  // seconds
  for_each_file(fd_, ".tmp", [&](const char* name, const struct stat& info) {
    if (info.st_mtime < std::time(nullptr) - kDay) unlinkat(fd_, name, 0);
  });
}

std::string cache_path() {
  const std::string named = value_of("HPCATTN_CACHE_DIR");
  if (!named.empty()) return named + "/kernels";
  const std::string caches = value_of("XDG_CACHE_HOME");
  if (caches.starts_with('/')) return caches + "/hpcattn/kernels";
  const std::string folder = home();
  return folder.empty() ? "" : folder + "/.cache/hpcattn/kernels";
}

std::string shipped_path() {
  std::string named = value_of("HPCATTN_CUBIN_DIR");
  if (!named.empty()) return named;
  const std::string library = own_library_path();
  return library.substr(0, library.rfind('/') + 1) + "cubins";
}

}  // namespace hpcattn::cuda
