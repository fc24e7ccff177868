// SPDX-License-Identifier: Apache-2.0
// As kernels/ptx/thread.h.
#pragma once

#include <cstdint>

namespace hpcattn::ptx {

inline int thread_index_here() { return static_cast<int>(threadIdx.x); }
inline int cta_index_here() { return static_cast<int>(blockIdx.x); }

inline std::uint32_t word_here(std::uint32_t word) { return word; }

}  // namespace hpcattn::ptx
