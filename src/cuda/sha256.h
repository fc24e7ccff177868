// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4): what cached kernels are named by, and checked with.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace hpcattn::cuda {

class Sha256 {
 public:
  using Digest = std::array<unsigned char, 32>;

  Sha256& add(std::string_view bytes);
  /// The length first, so that two texts one after the other are not taken for two others.
  Sha256& add_field(std::string_view bytes);
  Digest finish();

 private:
  void block(const unsigned char* bytes);

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> pending_{};
  std::uint64_t length_ = 0;
};

/// 64 hexadecimal digits.
std::string hex(const Sha256::Digest& digest);

}  // namespace hpcattn::cuda
