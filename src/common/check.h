// SPDX-License-Identifier: Apache-2.0
// check(condition, parts...) and unsupported(parts...): one way to write an error message, from the
// values that were compared.
//
//   check(k.size(2) == q.size(2), op, ": k_cache has head_dim ", k.size(2), ", expected ",
//   q.size(2),
//         " (as q has).");
//
// The parts of a check are evaluated where it holds too. What makes text is wrapped, and then
// called where it fails alone: [&] { return to_string(q); }.
#pragma once

#include <sstream>
#include <string>
#include <type_traits>

#include "hpcattn/error.h"

namespace hpcattn {

template <typename Part>
void write_part(std::ostream& text, const Part& part) {
  if constexpr (std::is_invocable_v<const Part&>) {
    text << part();
  } else {
    text << part;
  }
}

template <typename... Parts>
std::string message(const Parts&... parts) {
  std::ostringstream text;
  (write_part(text, parts), ...);
  return text.str();
}

template <typename... Parts>
void check(bool condition, const Parts&... parts) {
  if (!condition) throw InvalidArgument(message(parts...));
}

template <typename... Parts>
void check_supported(bool condition, const Parts&... parts) {
  if (!condition) throw Unsupported(message(parts...));
}

}  // namespace hpcattn
