// SPDX-License-Identifier: Apache-2.0
// The tiles of a batch as a GPU's planner finds them: by number, and dealt to threads.
#pragma once

#include "kernels/tile/unroll.h"
#include "src/plan/balance_input.h"

namespace hpcattn::plan {

/// `count` things dealt to the threads in runs of equal length; the last threads may get none.
class Chunks {
 public:
  constexpr Chunks(std::int32_t count, int num_threads)
      : count_(static_cast<std::uint32_t>(count)),
        length_((count_ + static_cast<std::uint32_t>(num_threads) - 1) /
                static_cast<std::uint32_t>(num_threads)),
        active_(std::max(std::min(count, num_threads), 1)) {}
  /// The others have none. Thread 0 is one, always.
  constexpr int active() const { return active_; }
  constexpr std::int32_t begin(int t) const {
    return static_cast<std::int32_t>(std::min(length_ * static_cast<std::uint32_t>(t), count_));
  }
  constexpr std::int32_t end(int t) const { return begin(t + 1); }

 private:
  std::uint32_t count_;
  std::uint32_t length_;
  int active_;
};

/// The last of 0 .. count - 1 whose value is at most `value`; values do not fall, the first is not
/// above it.
template <typename T>
constexpr std::int32_t last_at_most(const T* values, std::int32_t count, T value) {
  std::int32_t low = 0;
  HPCATTN_NO_UNROLL
  while (count > 1) {
    const std::int32_t half = divide(count, 2);
    if (values[low + half] <= value) low += half;
    count -= half;
  }
  return low;
}

/// A tile with what its tasks say of it.
struct PlacedTile {
  std::int32_t request_idx = 0;
  std::int32_t head = 0;
  Request request;
  RowTile tile;

  constexpr std::int32_t num_rows() const { return tile.row_end - tile.row_begin; }
  constexpr Task task(std::int32_t kv_begin, std::int32_t kv_end, std::int32_t partial,
                      std::int32_t combine) const {
    return {.request = request_idx,
            .kv_head = head,
            .num_heads = 1,
            .row_begin = tile.row_begin,
            .row_end = tile.row_end,
            .kv_begin = kv_begin,
            .kv_end = kv_end,
            .partial = partial,
            .first_token = request.first_token,
            .num_tokens = request.num_tokens,
            .kv_len = request.kv_len,
            .combine = combine};
  }
  /// Of `num_splits` partials from `partial` on, `stride` rows apart.
  constexpr Combine combine(std::int32_t partial, std::int32_t num_splits, std::int32_t stride,
                            std::int32_t next) const {
    return {.request = request_idx,
            .kv_head = head,
            .num_heads = 1,
            .row_begin = tile.row_begin,
            .row_end = tile.row_end,
            .partial = partial,
            .num_splits = num_splits,
            .first_token = request.first_token,
            .stride = stride,
            .next = next};
  }
};

/// Tiles by number. The searches read what earlier phases have written.
class BatchIndex {
 public:
  constexpr BatchIndex(const BalanceInput& in, BalanceMemory& memory, int num_threads)
      : shape_(in.shape),
        memory_(memory),
        lengths_(in.lengths),
        tile_begin_(in.plan + in.layout.tile_begin()),
        num_threads_(num_threads) {
    if (in.lengths.num_requests > kCachedRequests) return;
    lengths_ = {.cu_seqlens_q = memory.cu_seqlens_q,
                .kv_lens = memory.kv_lens,
                .num_requests = in.lengths.num_requests};
    tile_begin_ = memory.tile_begin;
  }

  constexpr bool is_cached() const { return tile_begin_ == memory_.tile_begin; }
  constexpr std::int32_t num_requests() const { return lengths_.num_requests; }
  constexpr std::int64_t num_tokens() const {
    return num_requests() > 0 ? lengths_.q_end(num_requests()) : 0;
  }
  constexpr Request request(std::int32_t i) const { return lengths_.request(i, shape_.max_tokens); }
  /// Row tiles of one KV head before each request, [num_requests + 1].
  constexpr std::int32_t* tile_begin() const { return tile_begin_; }

  /// Tiles of one KV head, dealt to the threads.
  constexpr Chunks tile_chunks() const { return {tiles_of_head(), num_threads_}; }
  constexpr std::int32_t tiles_of_head() const {
    return static_cast<std::int32_t>(memory_.totals.tiles);
  }

  /// `at` is where a search left it, or new.
  constexpr void find_tile(std::int32_t tile, PlacedTile& at) const {
    const std::int32_t i = find_request(tile, at.request_idx);
    at.request_idx = i;
    at.request = request(i);
    at.tile = row_tile(shape_, at.request, tile - tile_begin_[i]);
  }

 private:
  /// The request that a tile belongs to, found at once where it is that of the last search, or
  /// where each request has one tile.
  constexpr std::int32_t find_request(std::int32_t tile, std::int32_t last) const {
    const std::int32_t count = lengths_.num_requests;
    const auto has = [&](std::int32_t i) {
      return i < count && tile_begin_[i] <= tile && tile < tile_begin_[i + 1];
    };
    if (has(last)) return last;
    if (has(tile)) return tile;
    // Of requests that begin at the same tile, the last one has it: the others are empty.
    return last_at_most(tile_begin_, count, tile);
  }

  const PlanShape& shape_;
  BalanceMemory& memory_;
  Lengths lengths_;
  std::int32_t* tile_begin_;
  int num_threads_;
};

}  // namespace hpcattn::plan
