// SPDX-License-Identifier: Apache-2.0
// Hopper's narrow tasks: what a variant is, and its shared memory. Read by the host too.
#pragma once

#include <cstdint>

#include "kernels/generic/attention/config.h"

namespace hpcattn {

struct DecodeSpec {
  AttentionSpec attention;
  int page_size = 64;
  friend constexpr bool operator==(const DecodeSpec&, const DecodeSpec&) = default;
};

/// K or V of one tile of KV tokens lies in a slot as [page][128 bytes of the dims][token][128
/// bytes], swizzled by the copy engine within 1024 bytes.
struct DecodeLayout {
  static constexpr int kTileKv = 64;
  static constexpr int kLineBytes = 128;
  static constexpr int kMaxSlots = 8;
  static constexpr int kAlignment = 1024;

  int box_tokens = 0;  // tokens of one copy: a page, or a tile of a longer one
  int slot_bytes = 0;
  int slots = 0;
  int barriers_offset = 0;  // past all that the wide tasks use
  int slots_offset = 0;     // a multiple of kAlignment
  int shared_bytes = 0;
};

/// The copy engine takes these pages in boxes, and these heads in whole lines.
constexpr bool decode_takes(const DecodeSpec& spec) {
  const int page = spec.page_size;
  const bool pages = page == 16 || page == 32 || page == 64 || page == 128 || page == 256;
  const int row_bytes =
      spec.attention.head_dim * static_cast<int>(size_bytes(spec.attention.kv_dtype));
  return pages && row_bytes % DecodeLayout::kLineBytes == 0 && !spec.attention.unaligned_kv &&
         size_bytes(spec.attention.kv_dtype) == 2;
}

constexpr DecodeLayout decode_layout(const DecodeSpec& spec) {
  const AttentionLayout generic = attention_layout(spec.attention);
  DecodeLayout layout;
  layout.box_tokens =
      spec.page_size < DecodeLayout::kTileKv ? spec.page_size : DecodeLayout::kTileKv;
  layout.slot_bytes = DecodeLayout::kTileKv * spec.attention.head_dim *
                      static_cast<int>(size_bytes(spec.attention.kv_dtype));
  // Narrow tasks: fixed part | q | slots; wide ones use the generic layout in the same memory.
  const int q_end = generic.fixed_bytes + generic.narrow.rows() * generic.q_stride;
  constexpr int kAlign = DecodeLayout::kAlignment;
  layout.slots_offset = (q_end + kAlign - 1) / kAlign * kAlign;
  constexpr int kBarrierBytes = 2 * DecodeLayout::kMaxSlots * 8;
  // Dynamic shared memory starts at a multiple of 1024 where nothing static lies before it.
  const int room = spec.attention.shared_budget - kBarrierBytes - layout.slots_offset;
  layout.slots = room / layout.slot_bytes;
  if (layout.slots > DecodeLayout::kMaxSlots) layout.slots = DecodeLayout::kMaxSlots;
  const int narrow_end = layout.slots_offset + layout.slots * layout.slot_bytes;
  const int wide_end = generic.bytes_of(generic.wide);
  layout.barriers_offset = ((narrow_end > wide_end ? narrow_end : wide_end) + 15) / 16 * 16;
  layout.shared_bytes = layout.barriers_offset + kBarrierBytes;
  return layout;
}

}  // namespace hpcattn
