// SPDX-License-Identifier: Apache-2.0
// The device of what a class is called with.
#pragma once

#include <string_view>

#include "hpcattn/tensor.h"
#include "src/common/check.h"

namespace hpcattn {

/// Throws Unsupported for a device that this build has no kernels for.
inline void check_on_cpu(std::string_view who, std::string_view arg, const Tensor& tensor) {
  check_supported(tensor.device().type == DeviceType::kCpu, who, ": ", arg, " is on ",
                  to_string(tensor.device()),
                  "; this build has kernels for the cpu alone. Move the tensors to the cpu.");
}

}  // namespace hpcattn
