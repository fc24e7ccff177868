// SPDX-License-Identifier: Apache-2.0
// Where the parts of a GPU's plan lie in its tensor. A kernel fills it and other kernels read it,
// while the host knows sizes alone: so places follow from sizes, not from counts.
//
//   header | tile_begin [num_requests + 1] | tasks -> <- combines
#pragma once

#include <cstdint>

#include "src/plan/layout.h"

namespace hpcattn::plan {

struct DeviceLayout {
  std::int64_t num_requests = 0;
  std::int64_t words = 0;  // of the whole tensor

  /// Scratch of the planner: tiles of rows of one KV head before each request.
  constexpr std::int64_t tile_begin() const { return kHeaderWords; }
  /// Tasks start at a multiple of 16 bytes.
  constexpr std::int64_t task(std::int64_t i) const {
    return (tile_begin() + num_requests + 1 + 3) / 4 * 4 + i * kTaskWords;
  }
  /// Combines grow from the end towards the tasks.
  constexpr std::int64_t combine(std::int64_t i) const {
    return words / 4 * 4 - (i + 1) * kCombineWords;
  }
  constexpr bool holds(std::int64_t num_tasks, std::int64_t num_combines) const {
    return task(num_tasks) <= combine(num_combines - 1);
  }
};

/// Row tiles on a GPU: a request with at most `narrow` rows a KV head (query tokens x group) has
/// one narrow tile, another has tiles of `wide` rows.
struct TileRows {
  int narrow = 16;
  int wide = 128;
};
constexpr TileRows tile_rows(int head_dim) {
  return {.narrow = 16, .wide = head_dim <= 128 ? 128 : 64};
}

/// KV tokens of one step of a GPU kernel; splits of the balanced plan end at multiples of it.
inline constexpr int kDeviceTileKv = 64;

/// Ctas that share a multiprocessor, and so a plan's workers: this times the multiprocessors.
inline constexpr int kCtasPerSm = 2;

}  // namespace hpcattn::plan
