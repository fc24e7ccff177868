// SPDX-License-Identifier: Apache-2.0
// Answers to Python as JSON.
#pragma once

#include <string>
#include <string_view>

namespace hpcattn::torch_ops {

/// A JSON string.
inline std::string quoted(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      constexpr std::string_view kHex = "0123456789abcdef";
      json += "\\u00";
      json += kHex[static_cast<unsigned char>(c) >> 4];
      json += kHex[static_cast<unsigned char>(c) & 15];
    } else {
      json += c;
    }
  }
  return json + '"';
}

/// A JSON array of what `show` makes of each value.
template <typename Values, typename Show>
std::string array(const Values& values, const Show& show) {
  std::string json = "[";
  for (const auto& value : values) {
    if (json.size() > 1) json += ", ";
    json += show(value);
  }
  return json + "]";
}

}  // namespace hpcattn::torch_ops
