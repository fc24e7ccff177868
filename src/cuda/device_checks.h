// SPDX-License-Identifier: Apache-2.0
// Whether kernels are compiled with checks of page ids, lengths and slots.
#pragma once

#include <cstdlib>
#include <string_view>

namespace hpcattn::cuda {

/// HPCATTN_DEVICE_CHECKS, as it was at the first call: anything but unset, empty and "0" is yes.
inline bool device_checks() {
  static const bool checks = [] {
    const char* value = std::getenv("HPCATTN_DEVICE_CHECKS");
    return value != nullptr && *value != '\0' && std::string_view(value) != "0";
  }();
  return checks;
}

}  // namespace hpcattn::cuda
