// SPDX-License-Identifier: Apache-2.0
// Tokens of a tile that no row sees: whatever lies there, nothing of it may reach a result.
#pragma once

#include "kernels/generic/attention/scores.h"
#include "kernels/ptx/barrier.h"
#include "kernels/ptx/memory.h"
#include "kernels/sm90/prefill/config.h"
#include "kernels/tile/unroll.h"

namespace hpcattn {

/// What of a tile is live: tokens [begin, end) of it, in those boxes that were copied.
struct LiveTokens {
  int begin;
  int end;
  unsigned boxes;

  /// All of the tile.
  template <PrefillLayout kLayout>
  bool all() const {
    constexpr unsigned kAllBoxes = (1U << kLayout.tile_kv / kLayout.box_tokens) - 1;
    return begin <= 0 && end >= kLayout.tile_kv && boxes == kAllBoxes;
  }
};

/// Rows of V of tokens that no row sees, of tokens [first, first + kTokens), become zeros: 0 times
/// what lies there may be NaN. By kThreads threads.
template <PrefillSpec kSpec, int kTokens, int kThreads>
inline void clear_dead_values(std::uint32_t slot, const LiveTokens& live, int first, int thread) {
  constexpr PrefillLayout kLayout = prefill_layout(kSpec);
  constexpr int kUnits = kLayout.line_bytes / 16;
  HPCATTN_NO_UNROLL
  for (int i = first * kUnits + thread; i < (first + kTokens) * kUnits; i += kThreads) {
    const int token = i / kUnits;
    const bool copied = (live.boxes >> token / kLayout.box_tokens & 1U) != 0;
    if (copied && token >= live.begin && token < live.end) continue;
    HPCATTN_NO_UNROLL
    for (int line = 0; line < kLayout.lines; ++line) {
      ptx::clear_shared_16(slot + line * kLayout.tile_kv * kLayout.line_bytes + i * 16);
    }
  }
}

/// Scores of tokens in boxes that were not copied.
template <typename Products>
inline void mask_boxes(typename Products::Scores& scores, unsigned boxes) {
  HPCATTN_UNROLL
  for (int n = 0; n < Products::kTokenTiles; ++n) {
    const bool copied = (boxes >> n * 8 / Products::kLayout.box_tokens & 1U) != 0;
    HPCATTN_UNROLL
    for (int e = 0; e < 4; ++e) {
      scores[0][n][e] = copied ? scores[0][n][e] : negative_infinity();
    }
  }
}

}  // namespace hpcattn
