// SPDX-License-Identifier: Apache-2.0
// Which dim stands where in the operands and the output of the two products (multiply.h). Plain
// functions, that the host tests.
//
// In the fragments of mma.m16n8k16, lane 4 g + t holds of the left operand the positions 2t, 2t +
// 1, 2t + 8 and 2t + 9 of its rows, and of the output the columns 2t and 2t + 1 of each tile.
#pragma once

#include "kernels/tile/unroll.h"

namespace hpcattn {

/// The pair of dims (2i, 2i + 1) of a block of 16 that stands at pair `place` of the contraction,
/// with fp8 K: a lane reads four neighbouring bytes, dims 4t to 4t + 3, for its four positions.
constexpr int fp8_pair_at(int place) { return place < 4 ? 2 * place : 2 * (place - 4) + 1; }

/// The reverse: where pair `i` of dims of a block of 16 goes.
constexpr int fp8_place_of_pair(int i) { return i % 2 == 0 ? i / 2 : 4 + i / 2; }

/// The dim of column `column` (0 to 7) of the output's tile `tile`. With fp8 V, of each two tiles
/// the first has the even and the second the odd dims of 16: they were transposed as pairs of
/// bytes.
constexpr int output_dim(int tile, int column, bool fp8) {
  return fp8 ? tile / 2 * 16 + 2 * column + tile % 2 : tile * 8 + column;
}

/// Calls visit(dim, x, x_next) for the pairs of neighbouring dims that a lane holds of a row of the
/// output, in the upper or lower half of its row tile.
template <bool kFp8, unsigned kDimTiles, typename Visit>
inline void for_each_output_pair(const float (&row)[kDimTiles][4], int half, int lane,
                                 const Visit& visit) {
  const int t = lane % 4;
  HPCATTN_UNROLL
  for (int n = 0; n < static_cast<int>(kDimTiles); n += 2) {
    const float* first = &row[n][2 * half];
    const float* second = &row[n + 1][2 * half];
    if constexpr (kFp8) {
      visit(output_dim(n, 2 * t, true), first[0], second[0]);
      visit(output_dim(n, 2 * t + 1, true), first[1], second[1]);
    } else {
      visit(output_dim(n, 2 * t, false), first[0], first[1]);
      visit(output_dim(n + 1, 2 * t, false), second[0], second[1]);
    }
  }
}

/// Bytes from one row to the next in shared memory: an odd number of 16-byte units, so that the
/// eight rows of an ldmatrix lie in unlike groups of banks whatever the column.
constexpr int padded_row_bytes(int row_bytes) { return (row_bytes / 16 | 1) * 16; }

}  // namespace hpcattn
