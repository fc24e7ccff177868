// SPDX-License-Identifier: Apache-2.0
// Hopper's decode kernel: what a variant is, and its shared memory. Read by the host too.
#pragma once

#include <cstdint>

#include "kernels/generic/attention/config.h"

namespace hpcattn {

struct DecodeSpec {
  AttentionSpec attention;
  int box_tokens = 64;  // of one copy: a page, or a tile of a longer one
  int rows = 16;        // of one pass over K and V: 16 or 32
  friend constexpr bool operator==(const DecodeSpec&, const DecodeSpec&) = default;
};

/// Four warps compute, a fifth claims tasks and starts copies.
inline constexpr int kDecodeThreads = kAttentionThreads + 32;

/// K or V of one tile of KV tokens lies in a slot as [page][lines of the dims][token][128 bytes],
/// swizzled by the copy engine within 1024 bytes.
struct DecodeLayout {
  static constexpr int kLineBytes = 128;
  static constexpr int kMaxSlots = 12;
  static constexpr int kAlignment = 1024;
  static constexpr int kStagedRows = 8;  // of the output, on their way out
  static constexpr int kQueuedPasses = 2;
  static constexpr int kPassBytes = static_cast<int>(sizeof(plan::Task)) + 16;
  /// Just more than a third of a multiprocessor's: two ctas are on each, as the grid has them.
  static constexpr int kLeastShared = 78'000;

  int tile_kv = 0;  // KV tokens of a slot
  int slot_bytes = 0;
  int slots = 0;
  // Shared memory: row infos | a float of each warp and row | a float of each row | passes | boxes
  // of the slots | a flag | q | P of two tiles, and after the last tile some rows of the output |
  // slots | barriers.
  int of_warps_offset = 0;
  int of_rows_offset = 0;
  int passes_offset = 0;
  int boxes_offset = 0;
  int flag_offset = 0;
  int q_offset = 0;
  int p_offset = 0;
  int p_stride = 0;       // bytes of a row
  int staged_stride = 0;  // floats of a row
  int slots_offset = 0;   // a multiple of kAlignment
  int barriers_offset = 0;
  int shared_bytes = 0;

  constexpr int p_bytes(int rows) const { return rows * p_stride; }  // of one tile
};

/// KV tokens of a slot: as many bytes with fp8 as without, but where 32 rows leave no registers for
/// so many scores.
constexpr int decode_tile_kv(DType kv_dtype, int rows) {
  return size_bytes(kv_dtype) == 1 && rows <= 16 ? 128 : 64;
}

constexpr DecodeLayout decode_layout(const DecodeSpec& spec) {
  const int head_dim = spec.attention.head_dim;
  DecodeLayout layout;
  const auto element = static_cast<int>(size_bytes(spec.attention.kv_dtype));
  layout.tile_kv = decode_tile_kv(spec.attention.kv_dtype, spec.rows);
  layout.slot_bytes = layout.tile_kv * head_dim * element;
  const auto aligned = [](int bytes, int unit) { return (bytes + unit - 1) / unit * unit; };
  layout.of_warps_offset = aligned(spec.rows * static_cast<int>(sizeof(RowInfo)), 16);
  layout.of_rows_offset = layout.of_warps_offset + kAttentionWarps * spec.rows * 4;
  layout.passes_offset = layout.of_rows_offset + spec.rows * 4;
  layout.boxes_offset =
      layout.passes_offset + DecodeLayout::kQueuedPasses * DecodeLayout::kPassBytes;
  layout.flag_offset = layout.boxes_offset + DecodeLayout::kMaxSlots * 4;
  layout.q_offset = layout.flag_offset + 16;
  layout.p_offset = layout.q_offset + spec.rows * padded_row_bytes(head_dim * 2);
  layout.p_stride = padded_row_bytes(layout.tile_kv * 2);
  layout.staged_stride = head_dim + 4;  // lanes that store dims of four rows hit unlike banks
  const int p_bytes = 2 * layout.p_bytes(spec.rows);
  const int staged_bytes = DecodeLayout::kStagedRows * layout.staged_stride * 4;
  layout.slots_offset = aligned(layout.p_offset + (p_bytes > staged_bytes ? p_bytes : staged_bytes),
                                DecodeLayout::kAlignment);
  constexpr int kBarrierBytes = 2 * (DecodeLayout::kMaxSlots + DecodeLayout::kQueuedPasses) * 8;
  const int room = spec.attention.shared_budget - kBarrierBytes - layout.slots_offset;
  // K of the next tile is used before V of this one: two slots are held, the others under way.
  const int ring = (head_dim <= 128 ? 64 : 96) * 1024;
  layout.slots = (room < ring ? room : ring) / layout.slot_bytes;
  if (layout.slots > DecodeLayout::kMaxSlots) layout.slots = DecodeLayout::kMaxSlots;
  layout.barriers_offset = layout.slots_offset + layout.slots * layout.slot_bytes;
  layout.shared_bytes = layout.barriers_offset + kBarrierBytes;
  if (layout.shared_bytes < DecodeLayout::kLeastShared) {
    layout.shared_bytes = DecodeLayout::kLeastShared;
  }
  return layout;
}

/// The copy engine takes these heads in whole lines, these pages in boxes, and the ring holds K and
/// V of a tile while the next is under way. 32 rows of 256 dims leave too few registers for the
/// addresses of small fp8 pages. What `checked` variants look at is the generic kernel's.
constexpr bool decode_takes(const DecodeSpec& spec) {
  const int box = spec.box_tokens;
  if (spec.rows > 16 && spec.attention.head_dim > 192 && is_fp8(spec.attention.kv_dtype) &&
      box < 32) {
    return false;
  }
  const auto row_bytes =
      spec.attention.head_dim * static_cast<int>(size_bytes(spec.attention.kv_dtype));
  return (box == 16 || box == 32 || box == 64 || box == 128) && spec.attention.head_dim >= 64 &&
         spec.attention.head_dim % 64 == 0 && row_bytes % DecodeLayout::kLineBytes == 0 &&
         !spec.attention.unaligned_kv && !spec.attention.checked && decode_layout(spec).slots >= 3;
}

}  // namespace hpcattn
