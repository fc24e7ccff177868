// SPDX-License-Identifier: Apache-2.0
// The ring of slots between the copy engine and the four warps. Warp 0 starts the copies; nobody
// waits for another warp but for a slot that it has not read yet.
#pragma once

#include <cstdint>

#include "kernels/generic/attention/load.h"
#include "kernels/ptx/barrier.h"
#include "kernels/sm90/decode/config.h"
#include "kernels/sm90/decode/params.h"

namespace hpcattn {

/// Items are K and V of a tile by turns, counted from the kernel's start: item i lies in slot
/// i % slots in round i / slots.
template <DecodeSpec kSpec>
class DecodeRing {
 public:
  static constexpr DecodeLayout kLayout = decode_layout(kSpec);
  static constexpr int kSlots = kLayout.slots;
  static_assert(kSlots >= 3);

  explicit DecodeRing(std::uint32_t shared)
      : full_(shared + kLayout.barriers_offset),
        empty_(full_ + DecodeLayout::kMaxSlots * 8),
        slots_(shared + kLayout.slots_offset) {}

  /// One thread, before the first use. full: the starter and the bytes arrive; empty: each warp
  /// once.
  void init() const {
    for (int slot = 0; slot < kSlots; ++slot) {
      ptx::mbarrier_init(full(slot), 1);
      ptx::mbarrier_init(empty(slot), kAttentionWarps);
    }
    ptx::fence_mbarrier_init();
  }

  std::uint32_t slot_address(int item) const { return slots_ + item % kSlots * kLayout.slot_bytes; }
  std::uint32_t full_barrier(int item) const { return full(item % kSlots); }

  void wait_full(int item) const { ptx::mbarrier_wait(full(item % kSlots), item / kSlots % 2); }

  /// All lanes of a warp are done with an item.
  void release(int item, int lane) const {
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(empty(item % kSlots));
  }

  /// The slot of an item may be written.
  void wait_empty(int item) const {
    if (item >= kSlots) ptx::mbarrier_wait(empty(item % kSlots), (item / kSlots - 1) % 2);
  }

 private:
  std::uint32_t full(int slot) const { return full_ + slot * 8; }
  std::uint32_t empty(int slot) const { return empty_ + slot * 8; }

  std::uint32_t full_;
  std::uint32_t empty_;
  std::uint32_t slots_;
};

/// Warp 0's part: a lane for each page of a tile.
template <DecodeSpec kSpec>
class DecodeLoader {
  using Ring = DecodeRing<kSpec>;
  static constexpr DecodeLayout kLayout = Ring::kLayout;
  static constexpr int kBoxes = DecodeLayout::kTileKv / kLayout.box_tokens;
  static constexpr int kBoxBytes = kLayout.slot_bytes / kBoxes;

 public:
  DecodeLoader(const DecodeParams& params, const Ring& ring, const plan::Task& task, int lane)
      : p_(params),
        ring_(ring),
        lane_(lane),
        head_(task.kv_head),
        end_(task.kv_end),
        begin_(task.kv_begin),
        table_(params.attention.page_table + task.request * params.attention.table_request) {}

  /// Looks up this lane's page of a tile, one tile ahead of its use.
  void look_up(int tile) {
    next_ = -1;
    const int token = tile * DecodeLayout::kTileKv + lane_ * kLayout.box_tokens;
    if (lane_ < kBoxes && token < end_ && token + kLayout.box_tokens > begin_) {
      next_ = table_[token / kSpec.page_size * p_.attention.table_page];
    }
  }

  /// Starts the copy of K of the tile that was looked up; `item` is its place in the ring.
  void load_k(int tile, int item) {
    page_ = next_;
    look_up(tile + 1);
    load(tile, item, p_.k_map);
  }

  /// The same tile's V.
  void load_v(int tile, int item) { load(tile, item, p_.v_map); }

 private:
  void load(int tile, int item, const TensorMap& map) const {
    ring_.wait_empty(item);
    const bool live = page_ >= 0;
    const int boxes = __popc(__ballot_sync(0xffffffffU, live));
    if (lane_ == 0) ptx::mbarrier_arrive_expect(ring_.full_barrier(item), boxes * kBoxBytes);
    __syncwarp();
    if (!live) return;
    const int token = tile * DecodeLayout::kTileKv + lane_ * kLayout.box_tokens;
    ptx::tensor_copy_5d(ring_.slot_address(item) + lane_ * kBoxBytes, map, ring_.full_barrier(item),
                        0, token % kSpec.page_size, 0, head_, page_);
  }

  const DecodeParams& p_;
  const Ring& ring_;
  int lane_;
  int head_;
  int end_;
  int begin_;
  const std::int32_t* table_;
  std::int32_t next_ = -1;
  std::int32_t page_ = -1;
};

}  // namespace hpcattn
