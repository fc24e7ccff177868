// SPDX-License-Identifier: Apache-2.0
// What CUDA C++ has beyond C++, for kernels that the host's compiler translates: as much of it as
// ours use (CUDA C++ Programming Guide, C++ language extensions).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "machine.h"
#include "shared_memory.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// Static where a function declares it, and `extern` may stand before it, as in CUDA.
#define __shared__ thread_local

#define threadIdx (hpcattn::emulator::machine->thread)
#define blockIdx (hpcattn::emulator::machine->cta)
#define blockDim (hpcattn::emulator::machine->cta_size)
#define gridDim (hpcattn::emulator::machine->grid_size)

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

using std::max;
using std::min;

inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __fdividef(float a, float b) { return a / b; }
inline void* __cvta_shared_to_generic(unsigned address) {
  return hpcattn::emulator::shared_at(address, 0, 1);
}
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __clz(int bits) { return std::countl_zero(static_cast<unsigned>(bits)); }
inline int __ffs(int bits) {
  return bits == 0 ? 0 : std::countr_zero(static_cast<unsigned>(bits)) + 1;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((std::uint64_t{a} * b) >> 32);
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned pick = selector >> (4 * i) & 7U;
    result |= static_cast<unsigned>(bytes >> (8 * pick) & 0xffU) << (8 * i);
  }
  return result;
}

template <typename T>
T __ldg(const T* from) {
  return *from;
}
template <typename T>
T __ldcg(const T* from) {
  return *from;
}

// Only one thread runs at a time, so that memory has one order.
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
template <typename T>
T atomicAdd(T* at, T value) {
  const T before = *at;
  *at = before + value;
  return before;
}
inline int atomicCAS_system(int* at, int expected, int value) {
  const int before = *at;
  if (before == expected) *at = value;
  return before;
}

namespace hpcattn::emulator {

/// Lanes meet, and `work(lanes, mask)` is called once, with what each of them gave.
template <typename T>
void together(unsigned mask, const char* what, T& mine, void (*work)(T* const* lanes, unsigned)) {
  struct Meeting {
    T* mine;
    void (*work)(T* const*, unsigned);
  } meeting{&mine, work};
  machine->meet(mask, what, &meeting, [](void* const* meetings, unsigned present) {
    T* lanes[32] = {};
    void (*shared_work)(T* const*, unsigned) = nullptr;
    for (int i = 0; i < 32; ++i) {
      if (meetings[i] == nullptr) continue;
      lanes[i] = static_cast<Meeting*>(meetings[i])->mine;
      shared_work = static_cast<Meeting*>(meetings[i])->work;
    }
    shared_work(lanes, present);
  });
}

/// `source(lane)` names the lane whose value a lane gets; its own where that one is not there.
template <typename T, typename Source>
T shuffle(unsigned mask, const char* what, T value, Source source) {
  const int lane = static_cast<int>(machine->thread.x % 32);
  struct Exchange {
    T given;
    int from;
    T got;
  } mine{value, source(lane), value};
  together<Exchange>(mask, what, mine, [](Exchange* const* lanes, unsigned) {
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] == nullptr) continue;
      const int from = lanes[i]->from;
      if (from < 0) continue;
      if (lanes[from] == nullptr) machine->fail("a shuffle from lane %d, which is not there", from);
      lanes[i]->got = lanes[from]->given;
    }
  });
  return mine.got;
}

struct Vote {
  bool given;
  unsigned ballot;
};

inline unsigned ballot(unsigned mask, const char* what, bool given) {
  Vote mine{given, 0};
  together<Vote>(mask, what, mine, [](Vote* const* lanes, unsigned) {
    unsigned all = 0;
    for (int i = 0; i < 32; ++i) all |= (lanes[i] != nullptr && lanes[i]->given ? 1U : 0U) << i;
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] != nullptr) lanes[i]->ballot = all;
    }
  });
  return mine.ballot;
}

}  // namespace hpcattn::emulator

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
  return hpcattn::emulator::shuffle(mask, "shfl.xor", value,
                                    [&](int lane) { return lane ^ distance; });
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, int distance) {
  return hpcattn::emulator::shuffle(mask, "shfl.up", value,
                                    [&](int lane) { return lane - distance; });
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, int distance) {
  return hpcattn::emulator::shuffle(mask, "shfl.down", value, [&](int lane) {
    return lane + distance < 32 ? lane + distance : -1;
  });
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return hpcattn::emulator::shuffle(
      mask, "shfl.idx", value, [&](int lane) { return lane / width * width + source % width; });
}
inline unsigned __ballot_sync(unsigned mask, bool vote) {
  return hpcattn::emulator::ballot(mask, "ballot", vote);
}
inline bool __any_sync(unsigned mask, bool vote) {
  return hpcattn::emulator::ballot(mask, "any", vote) != 0;
}
inline bool __all_sync(unsigned mask, bool vote) {
  return hpcattn::emulator::ballot(mask, "all", vote) == mask;
}
inline void __syncwarp(unsigned mask = 0xffffffffU) {
  hpcattn::emulator::ballot(mask, "syncwarp", false);
}
inline void __syncthreads() { hpcattn::emulator::machine->barrier(0, 0, false); }
inline int __syncthreads_or(int vote) {
  return hpcattn::emulator::machine->barrier(0, 0, vote != 0) > 0 ? 1 : 0;
}
inline int __syncthreads_count(int vote) {
  return hpcattn::emulator::machine->barrier(0, 0, vote != 0);
}
