// SPDX-License-Identifier: Apache-2.0
// Hopper's decode kernel: what a variant is, and its shared memory. Read by the host too.
#pragma once

#include <cstdint>

#include "kernels/generic/attention/config.h"

namespace hpcattn {

struct DecodeSpec {
  AttentionSpec attention;
  int page_size = 64;
  friend constexpr bool operator==(const DecodeSpec&, const DecodeSpec&) = default;
};

/// Four warps compute, a fifth starts copies.
inline constexpr int kDecodeThreads = kAttentionThreads + 32;
inline constexpr int kDecodeRows = 16;  // of one pass over K and V

/// K or V of one tile of KV tokens lies in a slot as [page][lines of the dims][token][128 bytes],
/// swizzled by the copy engine within 1024 bytes.
struct DecodeLayout {
  static constexpr int kLineBytes = 128;
  static constexpr int kMaxSlots = 12;
  static constexpr int kAlignment = 1024;

  int tile_kv = 0;     // KV tokens of a slot: of which each warp takes a quarter
  int box_tokens = 0;  // tokens of one copy: a page, or a tile of a longer one
  int slot_bytes = 0;
  int slots = 0;
  // Shared memory: row infos | maxima and sums of the warps | a flag | q | sums of 8 rows | slots |
  // barriers.
  int maxima_offset = 0;
  int flag_offset = 0;
  int q_offset = 0;
  int sums_offset = 0;
  int sums_stride = 0;   // floats of a row
  int slots_offset = 0;  // a multiple of kAlignment
  int barriers_offset = 0;
  int shared_bytes = 0;
};

/// The copy engine takes these pages in boxes, and these heads in whole lines.
constexpr bool decode_takes(const DecodeSpec& spec) {
  const int page = spec.page_size;
  const bool pages = page == 16 || page == 32 || page == 64 || page == 128 || page == 256;
  const auto element = static_cast<int>(size_bytes(spec.attention.kv_dtype));
  // Above head dim 128 the output of 16 rows does not fit the registers.
  return pages && spec.attention.head_dim <= 128 &&
         spec.attention.head_dim * element % DecodeLayout::kLineBytes == 0 &&
         !spec.attention.unaligned_kv;
}

constexpr DecodeLayout decode_layout(const DecodeSpec& spec) {
  const int head_dim = spec.attention.head_dim;
  DecodeLayout layout;
  const auto element = static_cast<int>(size_bytes(spec.attention.kv_dtype));
  layout.tile_kv = element == 1 ? 128 : 64;  // the contraction of fp8 products is twice as long
  layout.box_tokens = spec.page_size < layout.tile_kv ? spec.page_size : layout.tile_kv;
  layout.slot_bytes = layout.tile_kv * head_dim * element;
  const auto aligned = [](int bytes, int unit) { return (bytes + unit - 1) / unit * unit; };
  layout.maxima_offset = aligned(kDecodeRows * static_cast<int>(sizeof(RowInfo)), 16);
  layout.flag_offset = layout.maxima_offset + kAttentionWarps * 8 * 8;
  layout.q_offset = layout.flag_offset + 16;
  layout.sums_offset = layout.q_offset + kDecodeRows * padded_row_bytes(head_dim * element);
  layout.sums_stride = head_dim + 4;  // lanes that store dims of four rows hit unlike banks
  layout.slots_offset = aligned(layout.sums_offset + kAttentionWarps * 8 * layout.sums_stride * 4,
                                DecodeLayout::kAlignment);
  constexpr int kBarrierBytes = 2 * DecodeLayout::kMaxSlots * 8;
  const int room = spec.attention.shared_budget - kBarrierBytes - layout.slots_offset;
  layout.slots = room / layout.slot_bytes;
  if (layout.slots > DecodeLayout::kMaxSlots) layout.slots = DecodeLayout::kMaxSlots;
  layout.barriers_offset = layout.slots_offset + layout.slots * layout.slot_bytes;
  layout.shared_bytes = layout.barriers_offset + kBarrierBytes;
  return layout;
}

}  // namespace hpcattn
