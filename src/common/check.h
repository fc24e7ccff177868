// SPDX-License-Identifier: Apache-2.0
// check(condition, parts...) and unsupported(parts...): one way to write an error message, from the
// values that were compared.
//
//   check(k.size(2) == q.size(2), op, ": k_cache has head_dim ", k.size(2), ", expected ",
//   q.size(2),
//         " (as q has).");
#pragma once

#include <sstream>
#include <string>

#include "hpcattn/error.h"

namespace hpcattn {

template <typename... Parts>
std::string message(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
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
