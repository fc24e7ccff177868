// SPDX-License-Identifier: Apache-2.0
// From a list of reasons to one error.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hpcattn {

/// Throws Unsupported with all reasons, separated by "; ", unless there are none.
void refuse(std::string_view who, const std::vector<std::string>& reasons);

}  // namespace hpcattn
