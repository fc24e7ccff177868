// SPDX-License-Identifier: Apache-2.0
// Matrix instructions of a warp (PTX ISA 9.7.14, mma and ldmatrix; sm_80 on). In the fragments of
// m16n8k16, with g = lane / 4 and t = lane % 4:
//   a[0] row g     k 2t, 2t+1       b[0] k 2t, 2t+1       column g
//   a[1] row g + 8 k 2t, 2t+1       b[1] k 2t + 8, 2t + 9 column g
//   a[2] row g     k 2t + 8, 2t + 9
//   a[3] row g + 8 k 2t + 8, 2t + 9
//   c[0], c[1] row g, columns 2t, 2t + 1; c[2], c[3] row g + 8
#pragma once

#include <cstdint>

#include "hpcattn/dtype_id.h"

namespace hpcattn::ptx {

/// c += a b in float32; a and b are packed pairs of kType (float16 or bfloat16).
template <DType kType>
inline void mma_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                         std::uint32_t b1) {
  static_assert(kType == DType::kFloat16 || kType == DType::kBFloat16);
  if constexpr (kType == DType::kFloat16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// kMatrices (2 or 4) of 8 rows of 16 bytes each; lane l gives the address of row l % 8 of matrix
/// l / 8. A lane gets bytes 4t .. 4t + 3 of row g; kTranspose: of b16 elements, rows 2t and 2t + 1
/// of column g.
template <int kMatrices, bool kTranspose>
inline void ldmatrix(std::uint32_t (&r)[kMatrices], std::uint32_t shared) {
  static_assert(kMatrices == 2 || kMatrices == 4);
  if constexpr (kMatrices == 4 && !kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
  } else if constexpr (kMatrices == 4) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
  } else if constexpr (!kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];\n"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];\n"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared)
                 : "memory");
  }
}

#if __CUDA_ARCH__ >= 900
/// The reverse of ldmatrix without kTranspose: lane l gives the address of row l % 8 of matrix l /
/// 8, and of each matrix bytes 4t .. 4t + 3 of row g. (PTX ISA 9.7.14.5.16; sm_90 on)
inline void stmatrix_x4(std::uint32_t shared, const std::uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(shared),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
#endif

/// An 8 x 8 matrix of b16 elements, transposed: a lane gives and gets columns 2t, 2t + 1 of row g.
inline std::uint32_t transpose_8x8(std::uint32_t pair) {
  std::uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(transposed) : "r"(pair));
  return transposed;
}

}  // namespace hpcattn::ptx
