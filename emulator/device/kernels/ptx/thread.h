// SPDX-License-Identifier: Apache-2.0
// As kernels/ptx/thread.h.
#pragma once

namespace hpcattn::ptx {

inline int thread_index_here() { return static_cast<int>(threadIdx.x); }
inline int cta_index_here() { return static_cast<int>(blockIdx.x); }

}  // namespace hpcattn::ptx
