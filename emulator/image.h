// SPDX-License-Identifier: Apache-2.0
// What the emulated libnvrtc makes and the emulated libcuda loads: a shared library, with its size
// before it, and what it exports.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "emulator/device/machine.h"

namespace hpcattn::emulator {

/// As much as a cta of Hopper may ask for.
inline constexpr std::size_t kSharedRoom = 232448;

/// The symbol hpcattn_entry.
struct Entry {
  void (*attach)(Machine* machine);
  void (*run)(const void* params);
  char* (*shared)();  // of the thread that asks
  std::size_t params_bytes;
};

inline constexpr char kImageMagic[8] = {'e', 'm', 'u', 'l', 'a', 't', 'o', 'r'};

inline std::string make_image(const std::string& library) {
  std::string image(kImageMagic, sizeof(kImageMagic));
  const std::uint64_t size = library.size();
  image.append(reinterpret_cast<const char*>(&size), sizeof(size));
  return image + library;
}

inline std::optional<std::string> library_of(const void* image) {
  const auto* at = static_cast<const char*>(image);
  std::uint64_t size = 0;
  if (std::memcmp(at, kImageMagic, sizeof(kImageMagic)) != 0) return std::nullopt;
  std::memcpy(&size, at + sizeof(kImageMagic), sizeof(size));
  return std::string(at + sizeof(kImageMagic) + sizeof(size), size);
}

}  // namespace hpcattn::emulator
