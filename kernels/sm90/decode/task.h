// SPDX-License-Identifier: Apache-2.0
// One pass over K and V of a task: tiles come through the ring, each warp takes a quarter of every
// tile's tokens, and the four warps' results are added up at the end.
#pragma once

#include "kernels/generic/attention/epilogue.h"
#include "kernels/ptx/memory.h"
#include "kernels/sm90/decode/multiply.h"
#include "kernels/sm90/decode/params.h"
#include "kernels/sm90/decode/query.h"
#include "kernels/sm90/decode/ring.h"
#include "kernels/sm90/decode/softmax.h"
#include "kernels/sm90/decode/tasks.h"

namespace hpcattn {

/// Named barrier of the warps that compute.
inline constexpr int kComputeBarrier = 1;

/// Rows of V of tokens that no row sees become zeros: 0 times what lies there may be NaN. A warp
/// clears its own tokens.
template <typename Products>
inline void clear_dead_values(std::uint32_t slot, int first_token, int lane, unsigned live_tokens) {
  using Line = typename Products::Line;
  constexpr int kUnits = Products::Math::kRowBytes / 16;
  HPCATTN_NO_UNROLL
  for (int i = lane; i < Products::kWarpTokens * kUnits; i += 32) {
    const int token = i / kUnits;
    if (live_tokens >> token & 1U) continue;
    ptx::clear_shared_16(Line(slot, first_token + token).unit(i % kUnits));
  }
  __syncwarp();
}

/// The warps' results, added up in an order that is always the same, eight rows at a time.
template <DecodeSpec kSpec, int kRowTiles>
inline void add_up_and_store(const TaskOutput& target,
                             const typename DecodeProducts<kSpec, kRowTiles>::Output& output,
                             const DecodeSoftmax<kRowTiles, DecodeMath<kSpec>::kFp8>& softmax,
                             char* base, int thread) {
  constexpr DecodeLayout kLayout = decode_layout(kSpec);
  constexpr int kStride = kLayout.sums_stride;
  constexpr int kDims = kSpec.attention.head_dim;
  auto* const maxima = reinterpret_cast<float2*>(base + kLayout.maxima_offset);
  auto* const sums = reinterpret_cast<float*>(base + kLayout.sums_offset);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int t = lane % 4;
  HPCATTN_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    HPCATTN_UNROLL
    for (int n = 0; n < kDims / 16; ++n) {
      HPCATTN_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int dim = DecodeProducts<kSpec, kRowTiles>::dim_of(n, e, lane);
        sums[(warp * 8 + 2 * t + e % 2) * kStride + dim] = output[r][n][e];
      }
    }
    HPCATTN_UNROLL
    for (int e = 0; e < 2; ++e) {
      if (lane / 4 != 0) continue;
      maxima[warp * 8 + 2 * t + e] = make_float2(softmax.reference[r][e], softmax.sum[r][e]);
    }
    ptx::barrier_sync(kComputeBarrier, kAttentionThreads);

    constexpr int kThreadsPerRow = kAttentionThreads / 8;
    const int row = thread / kThreadsPerRow;
    const int first = thread % kThreadsPerRow;
    if (target.live(r * 8 + row)) {
      float top = negative_infinity();
      HPCATTN_UNROLL
      for (int w = 0; w < kAttentionWarps; ++w) top = fmaxf(top, maxima[w * 8 + row].x);
      float share[kAttentionWarps];
      float sum = 0.0F;
      HPCATTN_UNROLL
      for (int w = 0; w < kAttentionWarps; ++w) {
        const float2 part = maxima[w * 8 + row];
        share[w] = top == negative_infinity() ? 0.0F : ptx::ex2(part.x - top);
        sum += part.y * share[w];
      }
      const RowResult result = target.finish(r * 8 + row, top, sum, first == 0);
      target.store(r * 8 + row, result.factor, [&](const auto& visit) {
        for (int dim = 2 * first; dim < kDims; dim += 2 * kThreadsPerRow) {
          float2 total = make_float2(0.0F, 0.0F);
          HPCATTN_UNROLL
          for (int w = 0; w < kAttentionWarps; ++w) {
            const auto part =
                *reinterpret_cast<const float2*>(sums + (w * 8 + row) * kStride + dim);
            total.x = fmaf(part.x, share[w], total.x);
            total.y = fmaf(part.y, share[w], total.y);
          }
          visit(dim, total.x, total.y);
        }
      });
    }
    ptx::barrier_sync(kComputeBarrier, kAttentionThreads);
  }
}

/// One pass of up to 8 * kRowTiles rows over K and V. Called by the four warps that compute;
/// returns the ring's next item.
template <DecodeSpec kSpec, int kRowTiles>
inline int run_pass(const DecodeParams& params, Pass pass, char* base,
                    const DecodeRing<kSpec>& ring, int item) {
  constexpr AttentionSpec kAttention = kSpec.attention;
  constexpr DecodeLayout kLayout = DecodeRing<kSpec>::kLayout;
  using Products = DecodeProducts<kSpec, kRowTiles>;
  constexpr int kTileKv = kLayout.tile_kv;
  constexpr int kWarpTokens = Products::kWarpTokens;
  constexpr unsigned kAllTokens = 0xffffffffU >> (32 - kWarpTokens);
  const AttentionParams& p = params.attention;
  const plan::Task task = load_pass(p, pass);

  const int thread = ptx::thread_index_here();
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int first_token = warp * kWarpTokens;  // of this warp in each tile
  auto* const infos = reinterpret_cast<RowInfo*>(base);
  char* const q_smem = base + kLayout.q_offset;
  write_row_infos<kAttention, 8 * kRowTiles>(p, task, infos, thread);
  ptx::barrier_sync(kComputeBarrier, kAttentionThreads);
  store_decode_query<kSpec>(p, task, q_smem, infos, 8 * kRowTiles, thread);
  ptx::barrier_sync(kComputeBarrier, kAttentionThreads);
  typename Products::Query query;
  Products::load_query(query, ptx::shared_address(q_smem), lane);

  // Whether this lane's token of a tile is live: inside of the task, on a page that exists.
  const auto is_live = [&](int tile) {
    const int token = tile * kTileKv + first_token + lane % kWarpTokens;
    if (token < task.kv_begin || token >= task.kv_end) return false;
    const std::int32_t* const table = p.page_table + task.request * p.table_request;
    return table[token / kSpec.page_size * p.table_page] >= 0;
  };
  typename Products::Output output;
  Products::clear(output);
  DecodeSoftmax<kRowTiles, DecodeMath<kSpec>::kFp8> softmax;
  const TileRange<kTileKv> tiles(task);
  bool next_live = is_live(tiles.begin);
  for (int tile = tiles.begin; tile < tiles.end; ++tile) {
    const unsigned live_tokens = __ballot_sync(0xffffffffU, next_live) & kAllTokens;
    next_live = is_live(tile + 1);  // one tile ahead of its use
    ring.wait_full(item);
    typename Products::Scores scores;
    // The lane is read anew in each tile: what follows from it would be kept for all of them, and
    // take registers that are not there.
    Products::keys_query(scores, query, ring.slot_address(item), first_token,
                         ptx::thread_index_here() % 32);
    ring.release(item++, lane);
    mask_pass<kAttention, Products>(scores, infos, tile * kTileKv + first_token, live_tokens,
                                    ptx::thread_index_here() % 32, p.softcap);
    float rescale[kRowTiles][2];
    if (softmax.update(scores, rescale)) Products::rescale(output, rescale);

    ring.wait_full(item);
    const std::uint32_t v = ring.slot_address(item);
    if (live_tokens != kAllTokens) {
      clear_dead_values<Products>(v, first_token, ptx::thread_index_here() % 32, live_tokens);
    }
    Products::values_probabilities(output, scores, v, first_token, ptx::thread_index_here() % 32);
    // The copy engine writes there next, after these ordinary stores.
    if (live_tokens != kAllTokens) ptx::fence_async_shared();
    ring.release(item++, lane);
  }
  softmax.finish();
  add_up_and_store<kSpec, kRowTiles>(TaskOutput(p, load_pass(p, pass), kAttention.head_dim), output,
                                     softmax, base, thread);
  return item;
}

}  // namespace hpcattn
