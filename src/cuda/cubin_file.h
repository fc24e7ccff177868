// SPDX-License-Identifier: Apache-2.0
// One compiled variant as a file: a header that says what it is, and the cubin. Whatever is not
// whole is no cubin.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "src/cuda/kernel.h"
#include "src/cuda/sha256.h"

namespace hpcattn::cuda {

struct Cubin {
  std::string bytes;    // machine code, or PTX that ends in a NUL
  int nvrtc_major = 0;  // of the compiler
  int nvrtc_minor = 0;
};

/// What a variant's machine code depends on: its source, the embedded sources that it includes, the
/// options, the arch and, unless it is 0.0, the compiler's version.
Sha256::Digest cubin_key(const KernelVariant& variant, const std::string& arch, int nvrtc_major,
                         int nvrtc_minor);

std::string encode_cubin(const Sha256::Digest& key, const Cubin& cubin);

/// Nothing where `file` is damaged, cut short, of another format or of another key.
std::optional<Cubin> decode_cubin(const Sha256::Digest& key, std::string_view file);

}  // namespace hpcattn::cuda
