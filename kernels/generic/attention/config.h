// SPDX-License-Identifier: Apache-2.0
// What a variant of the generic attention kernel is, and all that follows from it: tiles, slots and
// shared memory. Plain C++, read by the host too.
#pragma once

#include <cstdint>

#include "hpcattn/dtype_id.h"
#include "kernels/generic/attention/fragments.h"
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

/// Sizes that follow from a spec; the host asks for them at run time.
struct AttentionLayout {
  int q_stride = 0;  // bytes of a row in shared memory
  int kv_stride = 0;
  int fixed_bytes = 0;
  TaskShape narrow;
  TaskShape wide;

  /// Shared memory: what the cta copies | row infos | page ids of the tiles in the ring | maxima
  /// and sums of the kv warps | q | slots.
  static constexpr int kStateBytes = 64;
  static constexpr int kMaxSlots = 6;
  static constexpr int kPagesBytes = kMaxSlots * plan::kDeviceTileKv * 4;
  static constexpr int kReduceBytes = kAttentionWarps * 16 * 8;
  static constexpr int info_bytes(int rows) { return rows * static_cast<int>(sizeof(RowInfo)); }

  constexpr int bytes_of(const TaskShape& shape) const {
    return fixed_bytes + shape.rows() * q_stride + shape.slots * shape.tile_kv * kv_stride;
  }
  constexpr int shared_bytes() const {
    return bytes_of(narrow) > bytes_of(wide) ? bytes_of(narrow) : bytes_of(wide);
  }
  /// The ring holds K and V of one tile at least, and the accumulators of all kv warps at the end.
  constexpr bool fits(int head_dim) const {
    return narrow.slots >= 2 && wide.slots >= 2 &&
           kAttentionWarps * 16 * (head_dim + 8) * 4 <= narrow.slots * narrow.tile_kv * kv_stride;
  }
};

constexpr AttentionLayout attention_layout(const AttentionSpec& spec) {
  const plan::TileRows rows = plan::tile_rows(spec.head_dim);
  AttentionLayout layout;
  layout.q_stride = padded_row_bytes(spec.head_dim * 2);
  layout.kv_stride = padded_row_bytes(spec.head_dim * static_cast<int>(size_bytes(spec.kv_dtype)));
  layout.fixed_bytes = (AttentionLayout::kStateBytes + AttentionLayout::info_bytes(rows.wide) +
                        AttentionLayout::kPagesBytes + AttentionLayout::kReduceBytes + 15) /
                       16 * 16;
  const auto slots_of = [&](int tile_rows, int tile_kv) {
    const int room = spec.shared_budget - layout.fixed_bytes - tile_rows * layout.q_stride;
    const int slots = room / (tile_kv * layout.kv_stride);
    return slots > AttentionLayout::kMaxSlots ? AttentionLayout::kMaxSlots : slots;
  };
  // Few rows: all of them with each warp, the tokens of a tile dealt out.
  layout.narrow = {.row_warps = 1,
                   .kv_warps = 4,
                   .row_tiles = 1,
                   .tile_kv = 64,
                   .slots = slots_of(rows.narrow, 64)};
  // Many rows: dealt out to the warps. Up to 128 dims a warp has 32, which halves its reads of
  // shared memory; above, the accumulator of 32 rows does not fit the registers.
  // Half a tile at a time where two do not fit; and with ALiBi or a soft cap, whose numbers the
  // registers have no room for beside 32 rows of 128 dims and the scores of a whole one.
  const bool crowded = (spec.alibi || spec.softcap) && rows.wide == 128 && spec.head_dim > 96;
  const int tile_kv = slots_of(rows.wide, 64) >= 2 && !crowded ? 64 : 32;
  layout.wide = {.row_warps = 4,
                 .kv_warps = 1,
                 .row_tiles = rows.wide / 64,
                 .tile_kv = tile_kv,
                 .slots = slots_of(rows.wide, tile_kv)};
  return layout;
}

/// The same at compile time, for the kernel.
template <AttentionSpec kSpec>
struct AttentionConfig {
  /// K, V and q become this on their way to the tensor cores, all of them exactly.
  static constexpr DType kCompute =
      kSpec.q_dtype == DType::kBFloat16 ? DType::kBFloat16 : DType::kFloat16;
  static constexpr int kKvBytes = static_cast<int>(size_bytes(kSpec.kv_dtype));
  static constexpr int kHeadDim = kSpec.head_dim;
  static_assert(kHeadDim % 16 == 0);

  static constexpr AttentionLayout kLayout = attention_layout(kSpec);
  static_assert(kLayout.fits(kHeadDim));
  static constexpr int kQStride = kLayout.q_stride;
  static constexpr int kKvStride = kLayout.kv_stride;
  static constexpr int kFixedBytes = kLayout.fixed_bytes;
  static constexpr int kMaxSlots = AttentionLayout::kMaxSlots;
  static constexpr int kStateBytes = AttentionLayout::kStateBytes;
  static constexpr int kPagesBytes = AttentionLayout::kPagesBytes;
  static constexpr TaskShape kNarrow = kLayout.narrow;
  static constexpr TaskShape kWide = kLayout.wide;
  static constexpr int kInfoBytes = AttentionLayout::info_bytes(kWide.rows());
  static_assert(kNarrow.rows() == plan::tile_rows(kHeadDim).narrow &&
                kWide.rows() == plan::tile_rows(kHeadDim).wide);
};

}  // namespace hpcattn
