// SPDX-License-Identifier: Apache-2.0
// Matrix instructions of a warpgroup (PTX ISA 9.7.15, wgmma; sm_90a). They run on their own:
// products are started, closed into groups, and waited for; until then their accumulators and their
// operands in registers may not be touched, nor the shared memory that they read.
//
// d [64][kN] += a [64][k] b [k][kN], where k is 32 bytes deep: 16 numbers of 16 bits, 32 of fp8.
// Warp w of the group has rows 16 w to 16 w + 15. Of these each lane holds what it does with
// mma.m16n8k16 (mma.h), 8 columns after 8. Of a it holds, with g = lane / 4 and t = lane % 4, in
// register r the bytes 4 t to 4 t + 3 of half r / 2 of row g + r % 2 * 8.
#pragma once

#include <cstdint>

#include "hpcattn/dtype_id.h"
#include "kernels/tile/unroll.h"

namespace hpcattn::ptx {

/// An operand in shared memory in lines of 128 or 64 bytes, swizzled within eight lines as the copy
/// engine does it. A line holds neighbours along k ("K-major") or along rows or columns
/// ("MN-major", 16 bits and 128 bytes alone); eight lines follow each other, `stride_bytes` is from
/// eight lines to the next eight, and with MN-major operands `leading_bytes` from 128 bytes of a
/// row or column to the next 128.
template <int kLineBytes>
inline std::uint64_t swizzled_operand(std::uint32_t shared, int stride_bytes, int leading_bytes) {
  static_assert(kLineBytes == 64 || kLineBytes == 128);
  constexpr std::uint64_t kSwizzle = std::uint64_t{kLineBytes == 128 ? 1 : 2} << 62;
  const auto field = [](std::uint32_t bytes) { return std::uint64_t{(bytes & 0x3ffffU) >> 4}; };
  return field(shared) | field(static_cast<std::uint32_t>(leading_bytes)) << 16 |
         field(static_cast<std::uint32_t>(stride_bytes)) << 32 | kSwizzle;
}

/// The same, so many bytes further on.
inline std::uint64_t further(std::uint64_t operand, int bytes) {
  return operand + static_cast<std::uint64_t>(bytes >> 4);
}

/// Before the first product, and where registers of one were written since the last.
inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }

/// Closes a group of products.
inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }

/// Waits until at most kPending groups are under way.
template <int kPending>
inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

/// The compiler, which knows nothing of products under way, leaves accesses of `d` on their side of
/// this line.
template <int kCount>
inline void wgmma_keep_order(float* d) {
  HPCATTN_UNROLL
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Lists of operands: inline assembly has no loops.
#define HPCATTN_FLOATS_8(d)                                                           \
  "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3]), "+f"((d)[4]), "+f"((d)[5]), \
      "+f"((d)[6]), "+f"((d)[7])
#define HPCATTN_FLOATS_32(d)                                                  \
  HPCATTN_FLOATS_8(d), HPCATTN_FLOATS_8((d) + 8), HPCATTN_FLOATS_8((d) + 16), \
      HPCATTN_FLOATS_8((d) + 24)
#define HPCATTN_FLOATS_64(d) HPCATTN_FLOATS_32(d), HPCATTN_FLOATS_32((d) + 32)
#define HPCATTN_NAMES_32                                   \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define HPCATTN_NAMES_64                                             \
  HPCATTN_NAMES_32                                                   \
  ","                                                                \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

// `x`, `y`, ..: the names of the operands that follow the accumulators. `majors`: which operands in
// shared memory are MN-major; fp8 has no choice.
#define HPCATTN_WGMMA_SHARED(shape, type, majors, names, floats, x, y, z)                     \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " z                                      \
               ", 0;\n"                                                                       \
               "wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" names "}, " x \
               ", " y ", add, 1, 1" majors ";\n}\n"                                           \
               : floats                                                                       \
               : "l"(a), "l"(b), "r"(add))
#define HPCATTN_WGMMA_REGISTERS(shape, type, majors, names, floats, w, x, y, z, v)             \
  asm volatile("wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" names "}, {" w \
               "," x "," y "," z "}, " v ", 1, 1, 1" majors ";\n"                              \
               : floats                                                                        \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define HPCATTN_WGMMA_SHARED_BY_COLUMNS(depth, type, majors)                                    \
  if constexpr (kN == 64) {                                                                     \
    HPCATTN_WGMMA_SHARED("m64n64" depth, type, majors, HPCATTN_NAMES_32, HPCATTN_FLOATS_32(d),  \
                         "%32", "%33", "%34");                                                  \
  } else {                                                                                      \
    HPCATTN_WGMMA_SHARED("m64n128" depth, type, majors, HPCATTN_NAMES_64, HPCATTN_FLOATS_64(d), \
                         "%64", "%65", "%66");                                                  \
  }
#define HPCATTN_WGMMA_REGISTERS_BY_COLUMNS(depth, type, majors)                                    \
  if constexpr (kN == 64) {                                                                        \
    HPCATTN_WGMMA_REGISTERS("m64n64" depth, type, majors, HPCATTN_NAMES_32, HPCATTN_FLOATS_32(d),  \
                            "%32", "%33", "%34", "%35", "%36");                                    \
  } else {                                                                                         \
    HPCATTN_WGMMA_REGISTERS("m64n128" depth, type, majors, HPCATTN_NAMES_64, HPCATTN_FLOATS_64(d), \
                            "%64", "%65", "%66", "%67", "%68");                                    \
  }

/// The types of numbers that are multiplied.
constexpr bool wgmma_takes(DType type) {
  return type == DType::kFloat16 || type == DType::kBFloat16 || type == DType::kFloat8E4M3;
}

/// Both operands in shared memory, K-major. `add` 0: d is what it was not.
template <DType kType, int kN>
__forceinline__ void wgmma_shared(float* d, std::uint64_t a, std::uint64_t b, int add) {
  static_assert(wgmma_takes(kType) && (kN == 64 || kN == 128));
  if constexpr (kType == DType::kFloat16) {
    HPCATTN_WGMMA_SHARED_BY_COLUMNS("k16", "f16", ", 0, 0")
  } else if constexpr (kType == DType::kBFloat16) {
    HPCATTN_WGMMA_SHARED_BY_COLUMNS("k16", "bf16", ", 0, 0")
  } else {
    HPCATTN_WGMMA_SHARED_BY_COLUMNS("k32", "e4m3", "")
  }
}

/// a in registers, b in shared memory: of 16-bit numbers MN-major, of fp8 K-major. Added to d.
template <DType kType, int kN>
__forceinline__ void wgmma_registers(float* d, const std::uint32_t (&a)[4], std::uint64_t b) {
  static_assert(wgmma_takes(kType) && (kN == 64 || kN == 128));
  if constexpr (kType == DType::kFloat16) {
    HPCATTN_WGMMA_REGISTERS_BY_COLUMNS("k16", "f16", ", 1")
  } else if constexpr (kType == DType::kBFloat16) {
    HPCATTN_WGMMA_REGISTERS_BY_COLUMNS("k16", "bf16", ", 1")
  } else {
    HPCATTN_WGMMA_REGISTERS_BY_COLUMNS("k32", "e4m3", "")
  }
}

#undef HPCATTN_WGMMA_REGISTERS_BY_COLUMNS
#undef HPCATTN_WGMMA_SHARED_BY_COLUMNS
#undef HPCATTN_WGMMA_REGISTERS
#undef HPCATTN_WGMMA_SHARED
#undef HPCATTN_NAMES_64
#undef HPCATTN_NAMES_32
#undef HPCATTN_FLOATS_64
#undef HPCATTN_FLOATS_32
#undef HPCATTN_FLOATS_8

}  // namespace hpcattn::ptx
