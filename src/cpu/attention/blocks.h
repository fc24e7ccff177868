// SPDX-License-Identifier: Apache-2.0
// The register blocks of the two products, Q K^T and P V. Each keeps its sums in registers over a
// whole inner dimension; the counts are template arguments so that the loops unroll. Included by
// *.isa.cc alone.
#pragma once

#include "src/cpu/attention/formats.h"

namespace hpcattn::cpu::HPCATTN_ISA {

// Sums in registers. The rest of the registers holds what is multiplied.
inline constexpr int kWideKeys = kVectorRegisters == 32 ? 8 : 4;    // Q K^T wide: keys ..
inline constexpr int kWideRowVecs = 3;                              // .. times vectors of rows
inline constexpr int kNarrowKeys = kVectorRegisters == 32 ? 4 : 2;  // Q K^T narrow: keys ..
inline constexpr int kNarrowRowBlock = 4;                           // .. times rows
inline constexpr int kPvRows = 6;                                   // P V: rows ..
inline constexpr int kPvDimVecs =
    kVectorRegisters == 32 ? 4 : 2;  // .. times vectors of the head dim

/// scores[row * kTileKv + key] for kNarrowKeys keys: lanes run along the head dim, so K is read
/// once, as it lies. Also asks for the lines of the rows in `next`, which the next step of the
/// mainloop reads.
template <KvType kType, int kRows>
HPCATTN_INLINE void narrow_scores(const float* q, int head_dim, const std::byte* const* k_rows,
                                  const std::byte* const* next, float* scores) {
  Vec sum[kRows][kNarrowKeys] = {};
  for (int dim = 0; dim < head_dim; dim += kLanes) {
    Vec k[kNarrowKeys];
#pragma GCC unroll 4
    for (int key = 0; key < kNarrowKeys; ++key) k[key] = load_as_float<kType>(k_rows[key], dim);
    if ((dim * kElementBytes<kType>) % 64 == 0) {
#pragma GCC unroll 4
      for (int key = 0; key < kNarrowKeys; ++key) prefetch(next[key] + dim * kElementBytes<kType>);
    }
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      const Vec q_vec = load(q + row * head_dim + dim);
#pragma GCC unroll 4
      for (int key = 0; key < kNarrowKeys; ++key) sum[row][key] += q_vec * k[key];
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) store_sums(scores + row * kTileKv, sum[row]);
}

/// scores[key * kTileRows + row] for kWideKeys keys and kRowVecs vectors of rows: lanes run along
/// the rows, so that K is broadcast from where it lies and nothing is summed across lanes.
template <int kRowVecs>
HPCATTN_INLINE void wide_scores(const float* q_transposed, int head_dim, const float* const* k_rows,
                                float* scores) {
  Vec sum[kWideKeys][kRowVecs] = {};
  for (int dim = 0; dim < head_dim; ++dim) {
    Vec q[kRowVecs];
#pragma GCC unroll 3
    for (int i = 0; i < kRowVecs; ++i) q[i] = load(q_transposed + dim * kTileRows + i * kLanes);
#pragma GCC unroll 8
    for (int key = 0; key < kWideKeys; ++key) {
      const Vec k = broadcast(k_rows[key][dim]);
#pragma GCC unroll 3
      for (int i = 0; i < kRowVecs; ++i) sum[key][i] += k * q[i];
    }
  }
#pragma GCC unroll 8
  for (int key = 0; key < kWideKeys; ++key) {
#pragma GCC unroll 3
    for (int i = 0; i < kRowVecs; ++i) store(scores + key * kTileRows + i * kLanes, sum[key][i]);
  }
}

/// Where P(row, key) lies.
struct ProbabilityStrides {
  int row;
  int key;
};

/// o[row][dim .. dim + kDimVecs * kLanes) = rescale[row] * o + sum over keys of P(row, key) *
/// V(key).
template <KvType kType, int kRows, int kDimVecs>
HPCATTN_INLINE void accumulate_block(const float* p, ProbabilityStrides strides, int num_keys,
                                     const std::byte* const* v_rows, const std::byte* const* next,
                                     int dim, const float* rescale, float* o, int head_dim) {
  Vec sum[kRows][kDimVecs];
#pragma GCC unroll 6
  for (int row = 0; row < kRows; ++row) {
    const Vec factor = broadcast(rescale[row]);
#pragma GCC unroll 4
    for (int i = 0; i < kDimVecs; ++i)
      sum[row][i] = factor * load(o + row * head_dim + dim + i * kLanes);
  }
  for (int key = 0; key < num_keys; ++key) {
    Vec v[kDimVecs];
#pragma GCC unroll 4
    for (int i = 0; i < kDimVecs; ++i) v[i] = load_as_float<kType>(v_rows[key], dim + i * kLanes);
    if (next != nullptr) {
      constexpr int kBytes = kDimVecs * kLanes * kElementBytes<kType>;
      for (int byte = 0; byte < kBytes; byte += 64) {
        prefetch(next[key] + dim * kElementBytes<kType> + byte);
      }
    }
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      const Vec weight = broadcast(p[row * strides.row + key * strides.key]);
#pragma GCC unroll 4
      for (int i = 0; i < kDimVecs; ++i) sum[row][i] += weight * v[i];
    }
  }
#pragma GCC unroll 6
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int i = 0; i < kDimVecs; ++i) store(o + row * head_dim + dim + i * kLanes, sum[row][i]);
  }
}

}  // namespace hpcattn::cpu::HPCATTN_ISA
