// SPDX-License-Identifier: Apache-2.0
// As kernels/ptx/mma.h: the lanes of a warp bring their fragments, one of them multiplies.
#pragma once

#include "numbers.h"
#include "shared_memory.h"

namespace hpcattn::ptx {

namespace detail {

struct Fragments {
  float* c;
  const std::uint32_t* a;
  std::uint32_t b[2];
};

/// 16 rows x kRegisters * 4 * kPerRegister of a, times 8 columns of b.
template <DType kA, DType kB>
void multiply(Fragments* const* lanes) {
  constexpr int kPerRegister = is_fp8(kA) ? 4 : 2;
  constexpr int kBits = 32 / kPerRegister;
  constexpr int kDepth = 8 * kPerRegister;
  float a[16][kDepth];
  float b[8][kDepth];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4;
    const int t = lane % 4;
    for (int i = 0; i < kPerRegister; ++i) {
      for (int r = 0; r < 4; ++r) {
        a[g + r % 2 * 8][t * kPerRegister + i + r / 2 * (kDepth / 2)] =
            emulator::decode_number<kA>(lanes[lane]->a[r] >> (i * kBits));
      }
      for (int r = 0; r < 2; ++r) {
        b[g][t * kPerRegister + i + r * (kDepth / 2)] =
            emulator::decode_number<kB>(lanes[lane]->b[r] >> (i * kBits));
      }
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 4; ++e) {
      const float* const left = a[lane / 4 + e / 2 * 8];
      const float* const right = b[lane % 4 * 2 + e % 2];
      double sum = 0;
      for (int k = 0; k < kDepth; ++k) sum += double{left[k]} * double{right[k]};
      lanes[lane]->c[e] = static_cast<float>(double{lanes[lane]->c[e]} + sum);
    }
  }
}

template <DType kA, DType kB>
void mma(const char* what, float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
         std::uint32_t b1) {
  Fragments mine{c, a, {b0, b1}};
  emulator::together<Fragments>(0xffffffffU, what, mine,
                                [](Fragments* const* lanes, unsigned) { multiply<kA, kB>(lanes); });
}

struct Matrices {
  std::uint32_t address;
  std::uint32_t* registers;
};

}  // namespace detail

template <DType kType>
inline void mma_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                         std::uint32_t b1) {
  static_assert(kType == DType::kFloat16 || kType == DType::kBFloat16);
  detail::mma<kType, kType>("mma.m16n8k16", c, a, b0, b1);
}

template <int kMatrices, bool kTranspose>
inline void ldmatrix(std::uint32_t (&r)[kMatrices], std::uint32_t shared) {
  detail::Matrices mine{shared, r};
  emulator::together<detail::Matrices>(
      0xffffffffU, "ldmatrix", mine, [](detail::Matrices* const* lanes, unsigned) {
        for (int m = 0; m < kMatrices; ++m) {
          std::uint16_t matrix[8][8];
          for (int row = 0; row < 8; ++row) {
            std::memcpy(matrix[row], emulator::shared_at(lanes[8 * m + row]->address, 16, 16), 16);
          }
          for (int lane = 0; lane < 32; ++lane) {
            const int g = lane / 4;
            const int t = lane % 4;
            const std::uint32_t low = kTranspose ? matrix[2 * t][g] : matrix[g][2 * t];
            const std::uint32_t high = kTranspose ? matrix[2 * t + 1][g] : matrix[g][2 * t + 1];
            lanes[lane]->registers[m] = low | high << 16;
          }
        }
      });
}

#if __CUDA_ARCH__ >= 900
inline void stmatrix_x4(std::uint32_t shared, const std::uint32_t (&r)[4]) {
  std::uint32_t registers[4] = {r[0], r[1], r[2], r[3]};
  detail::Matrices mine{shared, registers};
  emulator::together<detail::Matrices>(
      0xffffffffU, "stmatrix", mine, [](detail::Matrices* const* lanes, unsigned) {
        for (int row = 0; row < 32; ++row) {
          char* const to = emulator::shared_at(lanes[row]->address, 16, 16);
          for (int t = 0; t < 4; ++t) {
            std::memcpy(to + 4 * t, &lanes[row % 8 * 4 + t]->registers[row / 8], 4);
          }
        }
      });
}
#endif

inline std::uint32_t transpose_8x8(std::uint32_t pair) {
  emulator::together<std::uint32_t>(
      0xffffffffU, "movmatrix", pair, [](std::uint32_t* const* lanes, unsigned) {
        std::uint32_t matrix[8][8];
        for (int lane = 0; lane < 32; ++lane) {
          matrix[lane / 4][lane % 4 * 2] = *lanes[lane] & 0xffffU;
          matrix[lane / 4][lane % 4 * 2 + 1] = *lanes[lane] >> 16;
        }
        for (int lane = 0; lane < 32; ++lane) {
          const int g = lane / 4;
          const int t = lane % 4;
          *lanes[lane] = matrix[2 * t][g] | matrix[2 * t + 1][g] << 16;
        }
      });
  return pair;
}

}  // namespace hpcattn::ptx
