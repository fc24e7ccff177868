// SPDX-License-Identifier: Apache-2.0
// Memory barriers in shared memory (PTX ISA 9.7.13.15, mbarrier; sm_90 on). A barrier completes a
// phase when all arrivals and all bytes that it expects have come; waits name the parity of the
// phase.
#pragma once

#include <cstdint>

namespace hpcattn::ptx {

inline void mbarrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals)
               : "memory");
}

/// Makes initialised barriers visible to the copy engine.
inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

inline void mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

/// One arrival, and `bytes` more that copies will bring.
inline void mbarrier_arrive_expect(std::uint32_t barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier),
      "r"(bytes)
      : "memory");
}

inline void mbarrier_wait(std::uint32_t barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// Orders this thread's ordinary accesses of shared memory before copies of the engine.
inline void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

/// Waits until `threads` threads have come to named barrier `id`; __syncthreads is 0.
inline void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

/// barrier_sync, which tells whether `vote` holds with any of the threads.
inline bool barrier_any(int id, int threads, bool vote) {
  int any;
  asm volatile(
      "{\n"
      ".reg .pred mine, all;\n"
      "setp.ne.s32 mine, %3, 0;\n"
      "bar.red.or.pred all, %1, %2, mine;\n"
      "selp.s32 %0, 1, 0, all;\n"
      "}\n"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<int>(vote))
      : "memory");
  return any != 0;
}

/// Comes to named barrier `id` without waiting for the others.
inline void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace hpcattn::ptx
