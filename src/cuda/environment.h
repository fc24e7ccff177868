// SPDX-License-Identifier: Apache-2.0
// Switches of the environment.
#pragma once

#include <cstdlib>
#include <string_view>

namespace hpcattn::cuda {

/// Anything but unset, empty and "0" is yes.
inline bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

}  // namespace hpcattn::cuda
