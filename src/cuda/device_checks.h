// SPDX-License-Identifier: Apache-2.0
// Whether kernels are compiled with checks of page ids, lengths and slots.
#pragma once

#include "src/cuda/environment.h"

namespace hpcattn::cuda {

/// HPCATTN_DEVICE_CHECKS, as it was at the first call.
inline bool device_checks() {
  static const bool checks = is_set("HPCATTN_DEVICE_CHECKS");
  return checks;
}

}  // namespace hpcattn::cuda
