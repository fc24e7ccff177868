// SPDX-License-Identifier: Apache-2.0
// As kernels/ptx/dependent.h; one kernel runs at a time.
#pragma once

namespace hpcattn::ptx {

inline void wait_for_kernel_before() {}
inline void let_next_kernel_begin() {}

}  // namespace hpcattn::ptx
