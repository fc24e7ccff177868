// SPDX-License-Identifier: Apache-2.0
// Entry of store_kv's kernel.
#pragma once

#include "kernels/fused/store/piece.h"
#include "kernels/ptx/dependent.h"

namespace hpcattn {

template <StoreSpec kSpec>
__device__ void store_kv(const StoreParams& p) {
  ptx::wait_for_kernel_before();
  ptx::let_next_kernel_begin();
  const std::int64_t index = std::int64_t{blockIdx.x} * kStoreThreads + threadIdx.x;
  if (index < num_store_pieces(p)) store_piece<kSpec>(p, index);
}

}  // namespace hpcattn
