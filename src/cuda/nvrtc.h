// SPDX-License-Identifier: Apache-2.0
// The functions of libnvrtc that we use, by their names there, and where the library is looked for.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "src/cuda/shared_library.h"

namespace hpcattn::cuda {

using Program = struct ProgramTag*;  // nvrtcProgram

struct Nvrtc {
  SharedLibrary library;
  int major = 0;
  int minor = 0;
  std::vector<int> archs;  // 80, 90, 100: what it compiles for, rising

  const char* (*error_text)(int) = nullptr;
  int (*version)(int* major, int* minor) = nullptr;
  int (*num_archs)(int*) = nullptr;
  int (*supported_archs)(int*) = nullptr;
  int (*create)(Program*, const char* source, const char* name, int num_headers,
                const char* const* headers, const char* const* include_names) = nullptr;
  int (*destroy)(Program*) = nullptr;
  int (*compile)(Program, int num_options, const char* const* options) = nullptr;
  int (*log_size)(Program, std::size_t*) = nullptr;
  int (*log)(Program, char*) = nullptr;
  int (*cubin_size)(Program, std::size_t*) = nullptr;
  int (*cubin)(Program, char*) = nullptr;
  int (*ptx_size)(Program, std::size_t*) = nullptr;
  int (*ptx)(Program, char*) = nullptr;

  /// "13.0".
  std::string version_text() const;
};

/// Opened at the first call. Throws DeviceError that says what was tried and how to get one.
const Nvrtc& nvrtc();

/// The files that are tried, in this order: HPCATTN_NVRTC alone where it is set; one that this
/// process has loaded; what set_nvrtc_paths() named (hpcattn/cuda.h); beside the CUDA runtime that
/// torch has loaded; the system's.
std::vector<std::string> nvrtc_candidates();

}  // namespace hpcattn::cuda
