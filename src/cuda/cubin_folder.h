// SPDX-License-Identifier: Apache-2.0
// A folder of compiled variants, a file each, named by its key. Any number of processes may read
// and write it at once; nothing of what can go wrong with a disk is an error, it only costs a
// compilation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "src/cuda/cubin_file.h"

namespace hpcattn::cuda {

class CubinFolder {
 public:
  /// Of the user alone: made with mode 0700, and neither read nor written where another user owns
  /// it or could write to it.
  static CubinFolder private_to_user(const std::string& path);
  /// Ships with the library: read as it is, never written.
  static CubinFolder shipped(const std::string& path);

  ~CubinFolder();
  CubinFolder(CubinFolder&& other) noexcept;
  CubinFolder(const CubinFolder&) = delete;
  CubinFolder& operator=(const CubinFolder&) = delete;

  std::optional<Cubin> load(const Sha256::Digest& key) const;

  /// Whole or not at all: written beside its place and renamed.
  bool store(const Sha256::Digest& key, const Cubin& cubin);

  /// Whether a file could be written now; problem() says why not.
  bool try_write();

  /// Why the folder is of no use, or could not be written to; empty where all is well.
  const std::string& problem() const { return problem_; }

  struct Content {
    std::int64_t files = 0;
    std::int64_t bytes = 0;
  };
  Content content() const;

 private:
  CubinFolder() = default;
  bool write_file(const std::string& name, const std::string& bytes) const;
  bool note_failure(const std::string& temporary);
  void remove_abandoned() const;

  int fd_ = -1;
  std::string problem_;
};

/// Where compiled variants are kept: HPCATTN_CACHE_DIR, XDG_CACHE_HOME/hpcattn or ~/.cache/hpcattn,
/// and "kernels" in it. Empty where there is no home either.
std::string cache_path();

/// Where the variants lie that ship built: HPCATTN_CUBIN_DIR, else "cubins" beside this library.
std::string shipped_path();

}  // namespace hpcattn::cuda
