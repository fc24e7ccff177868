// SPDX-License-Identifier: Apache-2.0
// What a variant of the generic attention kernel is, and all that follows from it: tiles, slots and
// shared memory. Plain C++, read by the host too.
#pragma once

#include <cstdint>

#include "hpcattn/dtype_id.h"
#include "src/plan/device_layout.h"

namespace hpcattn {

struct AttentionSpec {
  int head_dim = 128;
  DType q_dtype = DType::kBFloat16;
  DType kv_dtype = DType::kBFloat16;
  bool softcap = false;
  bool alibi = false;
  bool unaligned_kv = false;    // rows of K or V do not start at multiples of 16 bytes
  bool checked = false;         // page ids and lengths are looked at, and reported when wrong
  int shared_budget = 101'376;  // bytes of shared memory that a cta may have
  friend constexpr bool operator==(const AttentionSpec&, const AttentionSpec&) = default;
};

inline constexpr int kAttentionThreads = 128;
inline constexpr int kAttentionWarps = kAttentionThreads / 32;

/// How the warps of a cta share a task: over its rows and over the KV tokens of a tile.
struct TaskShape {
  int row_warps = 1;
  int kv_warps = 1;
  int row_tiles = 1;  // of 16 rows, of one warp
  int tile_kv = 64;   // KV tokens of one step
  int slots = 2;      // of the ring that holds tiles of K and V, by turns
  constexpr int rows() const { return row_warps * row_tiles * 16; }
};

/// What a row of a task needs besides its q; in shared memory.
struct RowInfo {
  std::int32_t kv_begin;  // it sees [kv_begin, kv_end)
  std::int32_t kv_end;
  std::int32_t position;
  float factor;  // of its raw scores, above 0
  float slope;   // ALiBi, in log2 units
};

template <AttentionSpec kSpec>
struct AttentionConfig {
  /// K, V and q become this on their way to the tensor cores, all of them exactly.
  static constexpr DType kCompute =
      kSpec.q_dtype == DType::kBFloat16 ? DType::kBFloat16 : DType::kFloat16;
  static constexpr int kKvBytes = static_cast<int>(size_bytes(kSpec.kv_dtype));
  static constexpr int kHeadDim = kSpec.head_dim;
  static_assert(kHeadDim % 16 == 0);

  /// An odd number of 16-byte units a row: eight rows at the same column lie in unlike banks.
  static constexpr int padded(int row_bytes) { return (row_bytes / 16 | 1) * 16; }
  static constexpr int kQStride = padded(kHeadDim * 2);
  static constexpr int kKvStride = padded(kHeadDim * kKvBytes);

  static constexpr plan::TileRows kRows = plan::tile_rows(kHeadDim);
  static constexpr int kMaxSlots = 6;

  // Shared memory: what the cta copies | row infos | page ids of the tiles in the ring | maxima and
  // sums of the kv warps | q | slots.
  static constexpr int kStateBytes = 64;
  static constexpr int kInfoBytes = kRows.wide * static_cast<int>(sizeof(RowInfo));
  static constexpr int kPagesBytes = kMaxSlots * plan::kDeviceTileKv * 4;
  static constexpr int kReduceBytes = kAttentionWarps * 16 * 8;
  static constexpr int kFixedBytes =
      (kStateBytes + kInfoBytes + kPagesBytes + kReduceBytes + 15) / 16 * 16;

  static constexpr int slots_of(int rows, int tile_kv) {
    const int slots =
        (kSpec.shared_budget - kFixedBytes - rows * kQStride) / (tile_kv * kKvStride);
    return slots > kMaxSlots ? kMaxSlots : slots;
  }
  static constexpr TaskShape with_slots(TaskShape shape) {
    shape.slots = slots_of(shape.rows(), shape.tile_kv);
    return shape;
  }

  /// Few rows: all of them with each warp, the tokens of a tile dealt out.
  static constexpr TaskShape kNarrow =
      with_slots({.row_warps = 1, .kv_warps = 4, .row_tiles = 1, .tile_kv = 64});
  /// Many rows: dealt out to the warps. Up to 128 dims a warp has 32, which halves its reads of
  /// shared memory; above, the accumulator of 32 rows does not fit the registers.
  static constexpr TaskShape kWide =
      with_slots({.row_warps = 4,
                  .kv_warps = 1,
                  .row_tiles = kRows.wide / 64,
                  .tile_kv = slots_of(kRows.wide, 64) >= 2 ? 64 : 32});
  static_assert(kNarrow.rows() == kRows.narrow && kWide.rows() == kRows.wide);
  static_assert(kNarrow.slots >= 2 && kWide.slots >= 2);

  static constexpr int shared_bytes_of(const TaskShape& shape) {
    return kFixedBytes + shape.rows() * kQStride + shape.slots * shape.tile_kv * kKvStride;
  }
  static constexpr int kSharedBytes = shared_bytes_of(kNarrow) > shared_bytes_of(kWide)
                                          ? shared_bytes_of(kNarrow)
                                          : shared_bytes_of(kWide);
  // The kv warps of a narrow task leave half of their accumulators in the slots.
  static_assert(2 * 16 * kHeadDim * 4 <= kNarrow.slots * kNarrow.tile_kv * kKvStride);
};

}  // namespace hpcattn
