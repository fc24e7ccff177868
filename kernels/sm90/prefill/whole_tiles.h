// SPDX-License-Identifier: Apache-2.0
// Tasks of a call that has no plan: tiles of rows over all that they see, which a warp finds from
// the lengths. Where no tile is worth cutting, this spares a launch that plans.
#pragma once

#include "kernels/generic/attention/params.h"
#include "kernels/ptx/thread.h"
#include "src/plan/row_tile.h"

namespace hpcattn {

/// By all lanes of one warp.
template <int kHeadDim>
class WholeTiles {
 public:
  explicit WholeTiles(const AttentionParams& p) : p_(p) {}

  /// The index-th; after the last, of kNoRequest. Those that see farthest come first, so that they
  /// are dealt out evenly; KV heads of a tile come one after the other.
  plan::Task task(int index) const {
    const Request mine = my_request();
    const int heads = p_.group_header.num_kv_heads;
    const int place = plan::divide(index, heads);
    if (place >= sum(mine.tiles)) return {.request = kNoRequest};
    int level = 0;  // the tile's; of one request any is right, for all tiles are in order
    if (p_.layout.num_requests > 1) {
      for (int above = most(mine.level(mine.lengths.kv_len)) + 1; above - level > 1;) {
        const int middle = level + (above - level) / 2;
        (sum(mine.tiles_from(p_, middle)) > place ? level : above) = middle;
      }
    }
    const int farther = mine.tiles_from(p_, level + 1);
    const int of_level = mine.tiles_from(p_, level) - farther;
    const int among = place - sum(farther);  // those of the level
    int through = of_level;
    HPCATTN_UNROLL
    for (int distance = 1; distance < 32; distance *= 2) {
      const int lower = __shfl_up_sync(kAll, through, distance);
      if (lane_here() >= distance) through += lower;
    }
    const int request = __ffs(static_cast<int>(__ballot_sync(kAll, through > among))) - 1;
    const auto of_request = [&](int value) { return __shfl_sync(kAll, value, request); };
    const plan::Request lengths{.first_token = of_request(mine.lengths.first_token),
                                .num_tokens = of_request(mine.lengths.num_tokens),
                                .kv_len = of_request(mine.lengths.kv_len)};
    // The last of the request's of this level, and how many of other requests come before it.
    const int last = of_request(mine.tiles - farther - 1);
    const int before = of_request(through - of_level);
    const plan::RowTile rows = plan::row_tile(shape(), lengths, last - (among - before));
    return {.request = request,
            .kv_head = index - place * heads,
            .row_begin = rows.row_begin,
            .row_end = rows.row_end,
            .kv_begin = rows.kv_begin,
            .kv_end = rows.kv_end,
            .first_token = lengths.first_token,
            .num_tokens = lengths.num_tokens,
            .kv_len = lengths.kv_len};
  }

 private:
  static constexpr unsigned kAll = 0xffffffffU;
  static constexpr plan::TileRows kRows = plan::tile_rows(kHeadDim);

  /// This lane's.
  struct Request {
    plan::Request lengths;
    int tiles = 0;  // of one KV head

    /// Tiles are told apart by how far they see, in so many tokens.
    static constexpr int level(int kv_end) { return kv_end / plan::kDeviceTileKv; }

    /// Those of `from` or more: its last ones.
    int tiles_from(const AttentionParams& p, int from) const {
      if (from > level(lengths.kv_len)) return 0;
      if (from == 0 || !p.mask.causal) return tiles;
      // Of the first token that sees so far.
      const int token = from * plan::kDeviceTileKv - 1 - (lengths.kv_len - lengths.num_tokens);
      if (token <= 0) return tiles;
      return tiles - token * static_cast<int>(p.group.divisor) / kRows.wide;
    }
  };

  plan::PlanShape shape() const {
    return {.mask = p_.mask, .rows = kRows, .group = static_cast<int>(p_.group.divisor)};
  }

  /// Read anew for each task: kept, it would take registers that copies need.
  Request my_request() const {
    const auto num_requests = static_cast<int>(p_.layout.num_requests);
    const bool packed = p_.cu_seqlens_k != nullptr;
    const plan::Lengths all{.cu_seqlens_q = p_.cu_seqlens_q,
                            .cu_seqlens_q_stride = p_.cu_q_stride,
                            .kv_lens = packed ? p_.cu_seqlens_k : p_.kv_lens,
                            .kv_lens_stride = packed ? p_.cu_k_stride : p_.kv_lens_stride,
                            .num_requests = num_requests,
                            .kv_cumulative = packed};
    Request mine;
    if (lane_here() < num_requests) {
      mine.lengths = all.request(lane_here(), plan::kMaxInt32 / shape().group);
    }
    mine.tiles = plan::num_row_tiles(shape(), mine.lengths.num_tokens);
    return mine;
  }

  static int lane_here() { return ptx::thread_index_here() % 32; }

  template <typename Combine>
  static int over_warp(int value, const Combine& combine) {
    HPCATTN_UNROLL
    for (int distance = 16; distance > 0; distance /= 2) {
      value = combine(value, __shfl_xor_sync(kAll, value, distance));
    }
    return value;
  }
  static int sum(int value) {
    return over_warp(value, [](int a, int b) { return a + b; });
  }
  static int most(int value) {
    return over_warp(value, [](int a, int b) { return max(a, b); });
  }

  const AttentionParams& p_;
};

}  // namespace hpcattn
