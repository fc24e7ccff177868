// SPDX-License-Identifier: Apache-2.0
// One pass over K and V of a task: tiles come through the ring; of each tile a warp takes a quarter
// of the tokens for the scores and a quarter of the dims for the output.
#pragma once

#include "kernels/generic/attention/epilogue.h"
#include "kernels/ptx/memory.h"
#include "kernels/sm90/decode/multiply.h"
#include "kernels/sm90/decode/params.h"
#include "kernels/sm90/decode/query.h"
#include "kernels/sm90/decode/shared.h"
#include "kernels/sm90/decode/softmax.h"

namespace hpcattn {

/// Named barrier of the warps that compute.
inline constexpr int kComputeBarrier = 1;
inline void sync_computing() { ptx::barrier_sync(kComputeBarrier, kAttentionThreads); }

/// Rows of V of tokens that no row sees become zeros: 0 times what lies there may be NaN. A warp
/// clears a quarter of the tokens.
template <DecodeSpec kSpec, int kWarpTokens>
inline void clear_dead_values(std::uint32_t slot, int first_token, int lane, unsigned live_tokens) {
  using Place = SlotPlace<kSpec>;
  constexpr int kUnits = Place::kRowBytes / 16;
  HPCATTN_NO_UNROLL
  for (int i = lane; i < kWarpTokens * kUnits; i += 32) {
    const int token = first_token + i / kUnits;
    if (live_tokens >> (i / kUnits) & 1U) continue;
    ptx::clear_shared_16(slot + Place::of_token(token) + Place::of_unit(i % kUnits, token));
  }
  // The copy engine writes there next, after these ordinary stores.
  ptx::fence_async_shared();
}

/// P of fp8 pages is of float16 (multiply.h).
template <DecodeSpec kSpec, int kRowTiles>
using PassSoftmax = DecodeSoftmax<kRowTiles, DecodeMath<kSpec>::kFp8 ? 7 : 0>;

/// The rows' results, through shared memory so that neighbouring threads write neighbouring dims.
template <DecodeSpec kSpec, int kRowTiles>
inline void store_pass(const TaskOutput& target,
                       const typename DecodeProducts<kSpec, kRowTiles>::Output& output,
                       PassSoftmax<kSpec, kRowTiles>& softmax, const DecodeShared<kSpec>& shared,
                       int thread) {
  using Products = DecodeProducts<kSpec, kRowTiles>;
  constexpr int kThreadsPerRow = kAttentionThreads / DecodeLayout::kStagedRows;
  constexpr int kPairs = kSpec.attention.head_dim / 2 / kThreadsPerRow;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int row = thread / kThreadsPerRow;
  const int first = thread % kThreadsPerRow;
  const auto dim_of = [first](int pair) { return 2 * (first + pair * kThreadsPerRow); };
  sync_computing();  // P was read, and the maxima were
  softmax.store(shared.of_warp(warp), shared.references(), lane);
  HPCATTN_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    HPCATTN_UNROLL
    for (int n = 0; n < Products::kDimTiles; ++n) {
      HPCATTN_UNROLL
      for (int e = 0; e < 4; ++e) {
        shared.staged(lane % 4 * 2 + e % 2)[Products::dim_of(warp, n, e, lane)] = output[r][n][e];
      }
    }
    sync_computing();
    const int i = r * 8 + row;
    if (target.live(i)) {
      float sum = 0.0F;
      HPCATTN_UNROLL
      for (int w = 0; w < kAttentionWarps; ++w) sum += shared.of_warp(w)[i];
      float2 pairs[kPairs];
      HPCATTN_UNROLL
      for (int pair = 0; pair < kPairs; ++pair) {
        pairs[pair] = *reinterpret_cast<const float2*>(shared.staged(row) + dim_of(pair));
      }
      const RowResult result = target.finish(i, shared.references()[i], sum, first == 0);
      target.store(i, result.factor, [&](const auto& visit) {
        HPCATTN_UNROLL
        for (int pair = 0; pair < kPairs; ++pair) visit(dim_of(pair), pairs[pair].x, pairs[pair].y);
      });
    }
    sync_computing();
  }
}

/// One pass of up to 8 * kRowTiles rows over K and V, whose q is there. Called by the four warps
/// that compute.
template <DecodeSpec kSpec, int kRowTiles>
inline void run_pass(const DecodeParams& params, const Pass& pass,
                     const DecodeShared<kSpec>& shared) {
  constexpr AttentionSpec kAttention = kSpec.attention;
  using Products = DecodeProducts<kSpec, kRowTiles>;
  constexpr int kTileKv = DecodeShared<kSpec>::kLayout.tile_kv;
  constexpr int kWarpTokens = Products::kWarpTokens;
  constexpr unsigned kAllTokens = 0xffffffffU >> (32 - kWarpTokens);
  constexpr unsigned kAllBoxes = 0xffffffffU >> (32 - kTileKv / kSpec.box_tokens);
  const AttentionParams& p = params.attention;
  const plan::Task& task = pass.task;
  const auto slots = shared.slots();
  // What follows from the thread's number is kept, or where the accumulators leave no registers for
  // it computed anew in each part of a tile.
  constexpr bool kAnew = kRowTiles * kAttention.head_dim > 512;
  const auto thread = static_cast<int>(threadIdx.x);
  const auto thread_here = [&] { return kAnew ? ptx::thread_index_here() : thread; };
  const auto warp_here = [&] { return thread_here() / 32; };
  const auto lane_here = [&] { return thread_here() % 32; };

  using Rows = PassRows<kAttention, kRowTiles>;
  const auto make_rows = [&] {
    return Rows(shared.infos(), task.row_end - task.row_begin, lane_here());
  };
  const auto make_products = [&] {
    using Layout = DecodeShared<kSpec>;
    return Products(shared.address(Layout::kLayout.q_offset),
                    shared.address(Layout::kLayout.p_offset), warp_here(), lane_here());
  };
  const Rows rows_kept = make_rows();
  const Products products_kept = make_products();
  const auto rows_here = [&] { return kAnew ? make_rows() : rows_kept; };
  const auto products_here = [&] { return kAnew ? make_products() : products_kept; };
  PassSoftmax<kSpec, kRowTiles> softmax;
  typename Products::Output output;
  Products::clear(output);

  int item = pass.item;
  typename Products::Scores scores;
  unsigned boxes = 0;
  const auto multiply_keys = [&] {
    slots.wait_full(item);
    boxes = shared.boxes(item);
    products_here().keys_query(scores, shared.slot_address(item));
    slots.release(item++);
  };
  const TileRange<kTileKv> tiles(task);
  if (tiles.begin < tiles.end) multiply_keys();
  for (int tile = tiles.begin; tile < tiles.end; ++tile) {
    const auto token_here = [&] { return tile * kTileKv + warp_here() * kWarpTokens; };
    if constexpr (kAttention.softcap || kAttention.alibi) {
      transform_pass<kAttention, Products>(scores, rows_here(), token_here(), p.softcap);
    }
    unsigned live_tokens = kAllTokens;
    const Rows rows = rows_here();
    if (boxes != kAllBoxes || tile * kTileKv < rows.plain_begin ||
        (tile + 1) * kTileKv > rows.plain_end) {
      const int mine = warp_here() * kWarpTokens + lane_here() % kWarpTokens;
      const int token = tile * kTileKv + mine;
      const unsigned box = boxes >> (mine / kSpec.box_tokens) & 1U;
      const bool live = token >= task.kv_begin && token < task.kv_end && box != 0;
      live_tokens = __ballot_sync(0xffffffffU, live) & kAllTokens;
      mask_pass<Products>(scores, rows, token_here(), live_tokens);
    }
    // Most often the shifts still do, and the warps need not agree on them before P.
    const bool starts = tile == tiles.begin;
    bool exceeded = false;
    PassSoftmax<kSpec, kRowTiles> after = softmax;
    const auto store_probabilities = [&] {
      after = softmax;
      products_here().store_probabilities(scores, tile, [&](int r, int e, float score) {
        return after.probability(rows, r, e, score);
      });
    };
    if (!starts) {
      exceeded = softmax.exceeded(scores, rows);
      store_probabilities();
    }
    if (live_tokens != kAllTokens) {
      const int values = tile + 1 < tiles.end ? item + 1 : item;
      slots.wait_full(values);
      clear_dead_values<kSpec, kWarpTokens>(shared.slot_address(values), warp_here() * kWarpTokens,
                                            lane_here(), live_tokens);
    }
    if (starts || ptx::barrier_any(kComputeBarrier, kAttentionThreads, exceeded)) {
      float rescale[kRowTiles][2];
      softmax.template move<kSpec.rows>(scores, rescale, rows, shared.of_warp(0), warp_here(),
                                        [] { sync_computing(); });
      Products::rescale(output, rescale);
      store_probabilities();
      sync_computing();
    }
    softmax = after;
    // The next tile's scores are under way while P is multiplied.
    if (tile + 1 < tiles.end) multiply_keys();
    slots.wait_full(item);
    products_here().values_probabilities(output, tile, shared.slot_address(item));
    slots.release(item++);
  }
  store_pass<kSpec, kRowTiles>(TaskOutput(p, task, kAttention.head_dim), output, softmax, shared,
                               thread_here());
}

}  // namespace hpcattn
