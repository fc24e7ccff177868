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

/// The place of a 16-byte unit among those of its line, the line being the `line`th from where the
/// swizzle counts (PTX ISA, swizzling modes; lines of 128 or 64 bytes).
constexpr int swizzled_unit(int line_bytes, int line, int unit) {
  return line_bytes == 128 ? unit ^ line % 8 : unit ^ line / 2 % 4;
}

/// K or V of one tile of KV tokens lies in a slot as [lines of the dims][token][line_bytes], q as
/// [lines][row][line_bytes], V transposed as [dim][value_line_bytes: the tile's tokens]; all
/// swizzled.
struct PrefillLayout {
  static constexpr int kMaxSlots = 8;
  static constexpr int kMaxValues = 2;
  static constexpr int kRecords = 4;  // of tasks that are known
  static constexpr int kMaxQueries = 2;
  static constexpr int kAlignment = 1024;

  int rows = 0;             // of a task
  int warpgroups = 0;       // that compute
  bool transposes = false;  // V, of fp8: one warpgroup more does
  int line_bytes = 0;
  int lines = 0;             // of the head dim
  int tile_kv = 0;           // KV tokens of a slot
  int box_tokens = 0;        // tokens of one copy
  int value_line_bytes = 0;  // of V transposed
  int slot_bytes = 0;        // V transposed takes as much
  int slots = 0;
  int values = 0;   // places of V transposed
  int q_bytes = 0;  // of a task
  int queries = 0;  // tasks whose q has a place: one that is computed, and the next
  // Shared memory: q of some tasks | V transposed | slots | records of tasks | boxes of each slot |
  // barriers | a flag.
  int values_offset = 0;
  int slots_offset = 0;
  int tasks_offset = 0;
  int boxes_offset = 0;
  int barriers_offset = 0;
  int flag_offset = 0;
  int shared_bytes = 0;

  /// Registers of a thread of the warpgroup that loads, of those that compute, and of the one that
  /// transposes. They are dealt out of what all have at the launch, of three warpgroups at least:
  /// so two of them have less than all there is, and something to deal. (The instruction that deals
  /// also tells the compiler that a warp's lanes are together.)
  static constexpr int kLoadRegisters = 40;
  constexpr int transpose_registers() const { return warpgroups > 1 ? 40 : 56; }
  constexpr int compute_registers() const { return warpgroups == 1 ? 240 : transposes ? 216 : 232; }
  constexpr int launch_bound() const {
    return threads() < 3 * kWarpgroupThreads ? 3 * kWarpgroupThreads : threads();
  }
  constexpr int launch_registers() const { return 64 * 1024 / launch_bound() / 8 * 8; }

  /// Warpgroups: the one that loads, those that compute, the one that transposes.
  constexpr int threads() const {
    return (1 + warpgroups + (transposes ? 1 : 0)) * kWarpgroupThreads;
  }
};

constexpr PrefillLayout prefill_layout(const PrefillSpec& spec) {
  constexpr int kTaskBytes = static_cast<int>(sizeof(plan::Task));
  const int head_dim = spec.attention.head_dim;
  const int element = static_cast<int>(size_bytes(spec.attention.kv_dtype));
  const int row_bytes = head_dim * element;
  PrefillLayout layout;
  layout.rows = plan::tile_rows(head_dim).wide;
  layout.warpgroups = layout.rows / kWarpgroupRows;
  layout.transposes = element == 1;
  layout.line_bytes = row_bytes % 128 == 0 ? 128 : 64;
  layout.lines = row_bytes / layout.line_bytes;
  // Past 128 dims the accumulators leave no registers for the scores of more.
  layout.tile_kv = head_dim <= 128 ? 128 : 64;
  layout.box_tokens = spec.page_size > 0 && spec.page_size < 64 ? spec.page_size : 64;
  layout.slot_bytes = layout.tile_kv * row_bytes;
  layout.value_line_bytes = layout.tile_kv * element;  // where V is transposed
  layout.values = layout.transposes ? PrefillLayout::kMaxValues : 0;
  layout.q_bytes = layout.rows * row_bytes;
  layout.queries = PrefillLayout::kMaxQueries;
  layout.values_offset = layout.queries * layout.q_bytes;
  layout.slots_offset = layout.values_offset + layout.values * layout.slot_bytes;
  // All that comes after the slots.
  constexpr int kBarrierBytes = 2 * 8 *
                                (PrefillLayout::kMaxSlots + PrefillLayout::kMaxQueries +
                                 PrefillLayout::kRecords + PrefillLayout::kMaxValues);
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

/// In the record of a task: there are no more.
inline constexpr int kNoRequest = -1;

/// Requests of a call without a plan: a lane of the warp that finds its tasks for each.
inline constexpr int kMostWholeRequests = 32;

/// 16-bit numbers or e4m3, q's those of K and V; heads of whole lines, pages that boxes divide.
/// What `checked` variants look at is the generic kernel's.
constexpr bool prefill_takes(const PrefillSpec& spec) {
  const AttentionSpec& attention = spec.attention;
  const int page = spec.page_size;
  const bool pages = page == 16 || page == 32 || page % 64 == 0;
  const bool dtypes =
      attention.q_dtype == attention.kv_dtype &&
      (size_bytes(attention.kv_dtype) == 2 || attention.kv_dtype == DType::kFloat8E4M3);
  return pages && dtypes && attention.head_dim % 64 == 0 && attention.head_dim <= 256 &&
         !attention.unaligned_kv && !attention.checked && prefill_layout(spec).slots >= 4;
}

}  // namespace hpcattn
