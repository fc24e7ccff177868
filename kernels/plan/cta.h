// SPDX-License-Identifier: Apache-2.0
// The threads of one cta as src/plan/balance.h wants them: phases, scans, wide stores, faults.
#pragma once

#include <bit>

#include "kernels/plan/config.h"
#include "kernels/tile/fault.h"
#include "kernels/tile/unroll.h"

namespace hpcattn {

/// Sums of the warps, for the one scan that runs at a time.
struct PlanScanMemory {
  static constexpr int kWarps = kPlanThreads / 32;
  static constexpr int kBytesOfSum = 24;
  alignas(16) unsigned char of_warp[kWarps * kBytesOfSum];
};

template <PlanSpec kSpec>
class PlanCta {
 public:
  static constexpr bool kChecked = kSpec.checked;

  PlanCta(PlanScanMemory& memory, Fault* faults) : memory_(memory), faults_(faults) {}

  static constexpr int num_threads() { return kPlanThreads; }

  template <typename Body>
  void each(int active, const Body& body) const {
    const int t = static_cast<int>(threadIdx.x);
    if (t < active) body(t);
    __syncthreads();
  }

  template <typename Sum, typename Make, typename Use>
  void scan(int active, const Make& make, const Use& use) const {
    static_assert(sizeof(Sum) <= PlanScanMemory::kBytesOfSum && sizeof(Sum) % 4 == 0);
    const int t = static_cast<int>(threadIdx.x);
    const int warp = t / 32;
    const int num_warps = (active + 31) / 32;
    Sum* const of_warp = reinterpret_cast<Sum*>(memory_.of_warp);
    Sum before{};  // of the threads before this one, in its warp, then in the cta
    if (warp < num_warps) {
      Sum through{};
      if (t < active) through = make(t);
      HPCATTN_UNROLL
      for (int distance = 1; distance < 32; distance *= 2) {
        const Sum lower = shuffle_up(through, distance);
        if (t % 32 >= distance) through = lower + through;
      }
      if (t % 32 == 31) of_warp[warp] = through;
      const Sum lower = shuffle_up(through, 1);
      if (t % 32 > 0) before = lower;
    }
    __syncthreads();
    if (t < active) {
      // Few warps have work where latency counts: adding their sums is faster than a second scan.
      Sum lower{};
      Sum all{};
      HPCATTN_NO_UNROLL
      for (int i = 0; i < num_warps; ++i) {
        if (i == warp) lower = all;
        all = all + of_warp[i];
      }
      use(t, lower + before, all);
    }
    __syncthreads();
  }

  /// A Task, Combine or Header, whose address is a multiple of 16 bytes.
  template <typename T>
  static void store(std::int32_t* words, const T& value) {
    static_assert(sizeof(T) % 16 == 0);
    const auto* from = reinterpret_cast<const std::int32_t*>(&value);
    HPCATTN_UNROLL
    for (int i = 0; i < static_cast<int>(sizeof(T) / 4); i += 4) {
      *reinterpret_cast<int4*>(words + i) = int4{from[i], from[i + 1], from[i + 2], from[i + 3]};
    }
  }

  void report(FaultKind kind, std::int64_t a, std::int64_t b, std::int64_t c,
              std::int64_t d) const {
    report_fault(faults_, kind, a, b, c, d);
  }

 private:
  template <typename T>
  static T shuffle_up(const T& value, int distance) {
    struct Words {
      unsigned at[sizeof(T) / 4];
    };
    Words words = std::bit_cast<Words>(value);
    HPCATTN_UNROLL
    for (unsigned& word : words.at) word = __shfl_up_sync(0xffffffffU, word, distance);
    return std::bit_cast<T>(words);
  }

  PlanScanMemory& memory_;
  Fault* faults_;
};

}  // namespace hpcattn
