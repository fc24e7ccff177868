// SPDX-License-Identifier: Apache-2.0
// The tiles of a task's KV range. Plain C++, that the host tests.
#pragma once

#include "kernels/sm90/prefill/config.h"

namespace hpcattn {

/// Tiles of a task's KV range, which begin at a box of its first token's page. Their items in the
/// ring are in the order in which they are used: K of a tile comes before V of the one before.
template <PrefillLayout kLayout>
struct TileItems {
  int first_token;
  int count;
  explicit TileItems(const plan::Task& task)
      : first_token(task.kv_begin / kLayout.box_tokens * kLayout.box_tokens),
        count(task.kv_end > task.kv_begin
                  ? (task.kv_end - first_token + kLayout.tile_kv - 1) / kLayout.tile_kv
                  : 0) {}
  int token(int tile) const { return first_token + tile * kLayout.tile_kv; }
  int items() const { return 2 * count; }
  static int key(int tile) { return tile == 0 ? 0 : 2 * tile - 1; }
  int value(int tile) const { return tile + 1 == count ? 2 * tile + 1 : 2 * tile + 2; }
};

}  // namespace hpcattn
