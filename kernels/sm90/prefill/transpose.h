// SPDX-License-Identifier: Apache-2.0
// The warpgroup that transposes V of fp8 pages, which the products take K-major alone: neighbours
// in memory are tokens. Each warp takes a quarter of a tile's tokens.
#pragma once

#include <cstdint>

#include "kernels/ptx/mma.h"
#include "kernels/sm90/prefill/dead.h"
#include "kernels/sm90/prefill/ring.h"
#include "kernels/sm90/prefill/tiles.h"

namespace hpcattn {

/// Tokens [first, first + kTokens) of V from a slot to `to`; by one warp. There the dims of a block
/// of 16 follow each other even ones first, and the tokens of a block of 16 as a lane of an
/// accumulator has them: 2t, 2t + 1, 2t + 8, 2t + 9. So P goes from scores to the left operand
/// without moving (multiply.h), and eight rows that are stored at once lie in unlike banks.
template <PrefillSpec kSpec, int kTokens>
inline void transpose_tokens(std::uint32_t slot, std::uint32_t to, int first, int lane) {
  constexpr PrefillLayout kLayout = prefill_layout(kSpec);
  constexpr int kLine = kLayout.line_bytes;
  constexpr int kValueLine = kLayout.value_line_bytes;
  constexpr int kBlocks = kTokens / 16;
  static_assert(kBlocks == 1 || kBlocks == 2);
  // Of ldmatrix each 16 lanes give the rows of 16 tokens; where there are no more, of two units.
  const int token = first + lane % (kBlocks * 16);
  const std::uint32_t from = slot + token * kLine;
  // Of stmatrix each 16 lanes give the rows of 16 dims.
  const int row = lane % 16;
  const int token_unit = first / 16 + (kBlocks == 2 ? lane / 16 : 0);
  constexpr int kUnitsAtOnce = 2 / kBlocks;
  constexpr int kUnits = kSpec.attention.head_dim / 16;
  HPCATTN_UNROLL
  for (int unit = 0; unit < kUnits; unit += kUnitsAtOnce) {
    const int mine = unit + (kBlocks == 1 ? lane / 16 : 0);
    const int line = mine / (kLine / 16);
    const int in_line = mine % (kLine / 16);
    std::uint32_t pairs[4];  // of dims: [2 blocks or units][tokens 2t and 2t + 1, and 8 more]
    ptx::ldmatrix<4, true>(
        pairs, from + line * kLayout.tile_kv * kLine + swizzled_unit(kLine, token, in_line) * 16);
    std::uint32_t dims[4];  // [2][even, odd]
    HPCATTN_UNROLL
    for (int i = 0; i < 4; i += 2) {
      dims[i] = ptx::prmt(pairs[i], pairs[i + 1], 0x6420);
      dims[i + 1] = ptx::prmt(pairs[i], pairs[i + 1], 0x7531);
    }
    const int dim_row = mine * 16 + row;
    ptx::stmatrix_x4(
        to + dim_row * kValueLine + swizzled_unit(kValueLine, dim_row, token_unit) * 16, dims);
  }
}

/// V of all tasks of this cta; `thread`: of the warpgroup.
template <PrefillSpec kSpec>
inline void transpose_values(const PrefillShared<kSpec>& shared, int thread) {
  constexpr PrefillLayout kLayout = prefill_layout(kSpec);
  using Shared = PrefillShared<kSpec>;
  constexpr int kTokens = kLayout.tile_kv / Shared::kTransposingWarps;
  const auto slots = shared.slots();
  const auto records = shared.records();
  const auto transposed = shared.transposed();
  const int lane = thread % 32;
  const int first = thread / 32 * kTokens;
  int item = 0;
  for (int number = 0;; ++number) {
    records.wait_full(number);
    const plan::Task& record = shared.record(number);
    const bool is_end = record.request == kNoRequest;
    const TileItems<kLayout> tiles(record);
    const int kv_begin = record.kv_begin;
    const int kv_end = record.kv_end;
    records.release(number);
    if (is_end) return;
    HPCATTN_NO_UNROLL
    for (int tile = 0; tile < tiles.count; ++tile) {
      const int from = item + tiles.value(tile);
      const int to = item / 2 + tile;
      const std::uint32_t slot = shared.slot_address(from);
      slots.wait_full(from);
      const int token = tiles.token(tile);
      const LiveTokens live{kv_begin - token, kv_end - token, shared.boxes(from)};
      if (!live.all<kLayout>()) {
        clear_dead_values<kSpec, kTokens, 32>(slot, live, first, lane);
        __syncwarp();
      }
      transposed.wait_empty(to);
      transpose_tokens<kSpec, kTokens>(slot, shared.transposed_address(to), first, lane);
      ptx::fence_async_shared();
      // For all that would have read the slot: a warp of each warpgroup that computes.
      HPCATTN_UNROLL
      for (int i = 0; i < kLayout.warpgroups; ++i) slots.release(from);
      transposed.fill(to);
    }
    item += tiles.items();
  }
}

}  // namespace hpcattn
