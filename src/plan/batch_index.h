// SPDX-License-Identifier: Apache-2.0
// The tiles of a batch as a GPU's planner finds them: by number, by cost, and dealt to threads.
#pragma once

#include "src/plan/balance_input.h"

namespace hpcattn::plan {

/// `count` things dealt to the threads in runs of equal length.
struct Chunks {
  std::int64_t count = 0;
  std::int64_t length = 1;

  constexpr Chunks(std::int64_t count_of_all, int num_threads)
      : count(count_of_all),
        length(std::max<std::int64_t>(ceil_div(count_of_all, std::int64_t{num_threads}), 1)) {}
  /// Threads that have any, and thread 0.
  constexpr int active() const {
    return static_cast<int>(std::max<std::int64_t>(ceil_div(count, length), 1));
  }
  constexpr std::int32_t begin(int t) const {
    return static_cast<std::int32_t>(std::min(length * t, count));
  }
  constexpr std::int32_t end(int t) const { return begin(t + 1); }
};

/// The last of 0 .. count - 1 whose value is at most `value`; values do not fall, the first is not
/// above it.
template <typename T>
constexpr std::int32_t last_at_most(const T* values, std::int32_t count, T value) {
  std::int32_t low = 0;
  while (count > 1) {
    const std::int32_t half = count / 2;
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
                      std::int32_t worker) const {
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
            .worker = worker};
  }
  constexpr Combine combine(std::int32_t partial, std::int32_t num_splits) const {
    return {.request = request_idx,
            .kv_head = head,
            .num_heads = 1,
            .row_begin = tile.row_begin,
            .row_end = tile.row_end,
            .partial = partial,
            .num_splits = num_splits,
            .first_token = request.first_token};
  }
};

/// Tiles by number and by cost. The searches read what earlier phases have written.
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
  constexpr Request request(std::int32_t i) const { return lengths_.request(i, shape_.group); }
  /// Row tiles of one KV head before each request, [num_requests + 1].
  constexpr std::int32_t* tile_begin() const { return tile_begin_; }

  /// Tiles of one KV head, dealt to the threads.
  constexpr Chunks tile_chunks() const { return {memory_.totals.tiles, num_threads_}; }
  constexpr std::int32_t tiles_of_head() const {
    return static_cast<std::int32_t>(memory_.totals.tiles);
  }

  /// The tile of one KV head at `offset` of its cost; returns the cost of the tiles before it.
  constexpr std::int64_t find_cost(std::int64_t offset, std::int32_t& tile, PlacedTile& at) const {
    const Chunks tiles = tile_chunks();
    const std::int32_t chunk = last_at_most(memory_.cost_before, tiles.active(), offset);
    std::int64_t before = memory_.cost_before[chunk];
    tile = tiles.begin(chunk);
    for (;; ++tile) {
      find_tile(tile, at);
      const std::int64_t cost = at.tile.cost(shape_.costs);
      if (before + cost > offset || tile + 1 >= tiles.end(chunk)) return before;
      before += cost;
    }
  }

  /// `at` is where a search left it, or new.
  constexpr void find_tile(std::int32_t tile, PlacedTile& at) const {
    const std::int32_t i = find_request(tile, at.request_idx);
    at.request_idx = i;
    at.request = request(i);
    at.tile = row_tile(shape_, at.request, tile - tile_begin_[i]);
  }
  constexpr void find_item(std::int32_t item, PlacedTile& at) const {
    at.head = item / tiles_of_head();
    find_tile(item - at.head * tiles_of_head(), at);
  }

 private:
  /// The request that a tile belongs to. Requests of one tile each are found at once, and so are
  /// neighbours of the last one.
  constexpr std::int32_t find_request(std::int32_t tile, std::int32_t last) const {
    const std::int32_t count = lengths_.num_requests;
    const auto has = [&](std::int32_t i) {
      return i < count && tile_begin_[i] <= tile && tile < tile_begin_[i + 1];
    };
    if (has(tile)) return tile;
    if (has(last)) return last;
    if (has(last + 1)) return last + 1;
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
