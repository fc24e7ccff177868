// SPDX-License-Identifier: Apache-2.0
// Hopper's prefill kernel: what a variant is, and its shared memory. Read by the host too.
#pragma once

#include <cstdint>

#include "kernels/generic/attention/config.h"

namespace hpcattn {

struct PrefillSpec {
  AttentionSpec attention;  // its shared_budget: of a cta that has a multiprocessor alone
  int page_size = 64;       // 0: packed K and V, all tokens on one page
  friend constexpr bool operator==(const PrefillSpec&, const PrefillSpec&) = default;
};

inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kWarpgroupRows = 64;

/// K or V of one tile of KV tokens lies in a slot as [lines of the dims][token][128 bytes], q as
/// [lines][row][128 bytes]; both swizzled within 1024 bytes.
struct PrefillLayout {
  static constexpr int kLineBytes = 128;
  static constexpr int kMaxSlots = 8;
  static constexpr int kRecords = 4;  // of tasks that are known
  static constexpr int kMaxQueries = 2;
  static constexpr int kAlignment = 1024;

  int rows = 0;        // of a task
  int warpgroups = 0;  // that compute
  int lines = 0;       // of the head dim
  int tile_kv = 0;     // KV tokens of a slot
  int box_tokens = 0;  // tokens of one copy
  int slot_bytes = 0;
  int slots = 0;
  int q_bytes = 0;  // of a task
  int queries = 0;  // tasks whose q has a place: one that is computed, and the next
  // Shared memory: q of some tasks | slots | records of tasks | boxes of each slot |
  // barriers | a flag.
  int slots_offset = 0;
  int tasks_offset = 0;
  int boxes_offset = 0;
  int barriers_offset = 0;
  int flag_offset = 0;
  int shared_bytes = 0;

  constexpr int threads() const { return (warpgroups + 1) * kWarpgroupThreads; }
};

constexpr PrefillLayout prefill_layout(const PrefillSpec& spec) {
  constexpr int kTaskBytes = static_cast<int>(sizeof(plan::Task));
  const int head_dim = spec.attention.head_dim;
  const int row_bytes = head_dim * 2;
  PrefillLayout layout;
  layout.rows = plan::tile_rows(head_dim).wide;
  layout.warpgroups = layout.rows / kWarpgroupRows;
  layout.lines = row_bytes / PrefillLayout::kLineBytes;
  // Past 128 dims the accumulators leave no registers for the scores of more.
  layout.tile_kv = head_dim <= 128 ? 128 : 64;
  layout.box_tokens = spec.page_size > 0 && spec.page_size < 64 ? spec.page_size : 64;
  layout.slot_bytes = layout.tile_kv * row_bytes;
  layout.q_bytes = layout.rows * row_bytes;
  layout.queries = PrefillLayout::kMaxQueries;
  layout.slots_offset = layout.queries * layout.q_bytes;
  // All that comes after the slots.
  constexpr int kBarrierBytes =
      2 * (PrefillLayout::kMaxSlots + PrefillLayout::kMaxQueries + PrefillLayout::kRecords) * 8;
  const int fixed =
      PrefillLayout::kRecords * kTaskBytes + PrefillLayout::kMaxSlots * 4 + kBarrierBytes + 16;
  layout.slots = (spec.attention.shared_budget - layout.slots_offset - fixed) / layout.slot_bytes;
  if (layout.slots > PrefillLayout::kMaxSlots) layout.slots = PrefillLayout::kMaxSlots;
  layout.tasks_offset = layout.slots_offset + layout.slots * layout.slot_bytes;
  layout.boxes_offset = layout.tasks_offset + PrefillLayout::kRecords * kTaskBytes;
  layout.barriers_offset = layout.boxes_offset + PrefillLayout::kMaxSlots * 4;
  layout.flag_offset = layout.barriers_offset + kBarrierBytes;
  layout.shared_bytes = layout.flag_offset + 16;
  return layout;
}

/// 16-bit numbers, heads of whole lines, pages that boxes divide. What `checked` variants look at
/// is the generic kernel's.
constexpr bool prefill_takes(const PrefillSpec& spec) {
  const AttentionSpec& attention = spec.attention;
  const int page = spec.page_size;
  const bool pages = page == 16 || page == 32 || page % 64 == 0;
  const bool dtypes =
      size_bytes(attention.kv_dtype) == 2 && attention.q_dtype == attention.kv_dtype;
  return pages && dtypes && attention.head_dim % 64 == 0 && attention.head_dim <= 256 &&
         !attention.unaligned_kv && !attention.checked && prefill_layout(spec).slots >= 4;
}

}  // namespace hpcattn
