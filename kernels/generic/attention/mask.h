// SPDX-License-Identifier: Apache-2.0
// Soft cap, ALiBi and masks on a tile's scores, as they lie in a warp's registers after a product
// (fragments.h): row tiles of 16 rows, token tiles of 8 columns.
#pragma once

#include <cstdint>

#include "kernels/generic/attention/scores.h"

namespace hpcattn {

/// Soft cap and ALiBi on a tile's raw scores. `rows(i, half)`: the RowInfo of this lane's row of
/// row tile i, in its upper or lower half; `token`: this lane's first column.
template <AttentionSpec kSpec, typename Products, typename Rows>
inline void transform_scores(typename Products::Scores& scores, const Rows& rows, int token,
                             float softcap) {
  HPCATTN_UNROLL
  for (int i = 0; i < Products::kRowTiles; ++i) {
    HPCATTN_UNROLL
    for (int half = 0; half < 2; ++half) {
      const RowInfo& row = rows(i, half);
      const auto distance = static_cast<float>(row.position - token);
      HPCATTN_UNROLL
      for (int n = 0; n < Products::kTokenTiles; ++n) {
        HPCATTN_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& score = scores[i][n][2 * half + e];
          score =
              transform_score<kSpec>(score, row, distance - static_cast<float>(n * 8 + e), softcap);
        }
      }
    }
  }
}

/// Tokens that a row does not see.
template <typename Products, typename Rows>
inline void mask_scores(typename Products::Scores& scores, const Rows& rows, int token) {
  HPCATTN_UNROLL
  for (int i = 0; i < Products::kRowTiles; ++i) {
    HPCATTN_UNROLL
    for (int half = 0; half < 2; ++half) {
      const RowInfo& row = rows(i, half);
      const int first = token - row.kv_begin;
      const unsigned num_seen = row.kv_end - row.kv_begin;
      HPCATTN_UNROLL
      for (int n = 0; n < Products::kTokenTiles; ++n) {
        HPCATTN_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& score = scores[i][n][2 * half + e];
          const bool seen = static_cast<unsigned>(first + n * 8 + e) < num_seen;
          score = seen ? score : negative_infinity();
        }
      }
    }
  }
}

/// Tokens of pages that do not exist. `pages`: of this lane's first column on.
template <typename Products>
inline void mask_holes(typename Products::Scores& scores, const std::int32_t* pages) {
  HPCATTN_UNROLL
  for (int n = 0; n < Products::kTokenTiles; ++n) {
    HPCATTN_UNROLL
    for (int e = 0; e < 2; ++e) {
      const bool hole = pages[n * 8 + e] < 0;
      HPCATTN_UNROLL
      for (int i = 0; i < Products::kRowTiles; ++i) {
        HPCATTN_UNROLL
        for (int half = 0; half < 2; ++half) {
          float& score = scores[i][n][2 * half + e];
          score = hole ? negative_infinity() : score;
        }
      }
    }
  }
}

}  // namespace hpcattn
