// SPDX-License-Identifier: Apache-2.0
// One pass over K and V of a task: tiles come through the ring; of each tile a warp takes a quarter
// of the tokens for the scores and a quarter of the dims for the output.
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
inline void sync_computing() { ptx::barrier_sync(kComputeBarrier, kAttentionThreads); }

struct JoinState {
  int last_arrived;  // this cta's partial was the last of its combine
};

/// What the warps that compute share, beside the ring.
template <DecodeSpec kSpec>
struct DecodeShared {
  static constexpr DecodeLayout kLayout = decode_layout(kSpec);
  char* base;

  RowInfo* infos() const { return reinterpret_cast<RowInfo*>(base); }
  float* of_warp(int warp) const {
    return reinterpret_cast<float*>(base + kLayout.of_warps_offset) + warp * kSpec.rows;
  }
  float* references() const { return reinterpret_cast<float*>(base + kLayout.of_rows_offset); }
  JoinState& state() const { return *reinterpret_cast<JoinState*>(base + kLayout.state_offset); }
  char* q() const { return base + kLayout.q_offset; }
  char* p() const { return base + kLayout.p_offset; }
  float* staged(int row) const {
    return reinterpret_cast<float*>(p()) + row * kLayout.staged_stride;
  }
};

/// Rows of V of tokens that no row sees become zeros: 0 times what lies there may be NaN. A warp
/// clears a quarter of the tokens.
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
  constexpr int kDims = kSpec.attention.head_dim;
  constexpr int kThreadsPerRow = kAttentionThreads / DecodeLayout::kStagedRows;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int row = thread / kThreadsPerRow;
  const int first = thread % kThreadsPerRow;
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
      const RowResult result = target.finish(i, shared.references()[i], sum, first == 0);
      target.store(i, result.factor, [&](const auto& visit) {
        const float* const staged = shared.staged(row);
        for (int dim = 2 * first; dim < kDims; dim += 2 * kThreadsPerRow) {
          const auto pair = *reinterpret_cast<const float2*>(staged + dim);
          visit(dim, pair.x, pair.y);
        }
      });
    }
    sync_computing();
  }
}

/// One pass of up to 8 * kRowTiles rows over K and V; it lies in shared memory, since the mainloop
/// has no registers for it. Called by the four warps that compute; returns the ring's next item.
template <DecodeSpec kSpec, int kRowTiles>
inline int run_pass(const DecodeParams& params, const Pass& pass, const DecodeShared<kSpec>& shared,
                    const DecodeRing<kSpec>& ring, int item) {
  constexpr AttentionSpec kAttention = kSpec.attention;
  using Products = DecodeProducts<kSpec, kRowTiles>;
  constexpr int kTileKv = DecodeRing<kSpec>::kLayout.tile_kv;
  constexpr int kWarpTokens = Products::kWarpTokens;
  constexpr unsigned kAllTokens = 0xffffffffU >> (32 - kWarpTokens);
  const AttentionParams& p = params.attention;
  const plan::Task& task = pass.task;

  // Read anew in each part of a tile: what follows from them would be kept for all of them, and
  // take registers that are not there.
  const auto warp_here = [] { return ptx::thread_index_here() / 32; };
  const auto lane_here = [] { return ptx::thread_index_here() % 32; };
  // Of this warp, in each tile.
  const auto first_token_here = [&] { return warp_here() * kWarpTokens; };
  const int thread = ptx::thread_index_here();
  write_row_infos<kAttention, 8 * kRowTiles>(p, task, shared.infos(), thread);
  sync_computing();
  store_decode_query<kSpec, kRowTiles>(p, task, shared.q(), shared.infos(), thread);
  sync_computing();
  const std::uint32_t q_smem = ptx::shared_address(shared.q());
  const std::uint32_t p_smem = ptx::shared_address(shared.p());

  // Whether this lane's token of a tile is live: inside of the task, on a page that exists.
  const auto is_live = [&](int tile) {
    const int token = tile * kTileKv + first_token_here() + lane_here() % kWarpTokens;
    if (token < task.kv_begin || token >= task.kv_end) return false;
    const std::int32_t* const table = p.page_table + task.request * p.table_request;
    return table[p.page_size.divide(token) * p.table_page] >= 0;
  };
  typename Products::Output output;
  Products::clear(output);
  PassSoftmax<kSpec, kRowTiles> softmax;
  const TileRange<kTileKv> tiles(task);
  bool next_live = is_live(tiles.begin);
  for (int tile = tiles.begin; tile < tiles.end; ++tile) {
    const unsigned live_tokens = __ballot_sync(0xffffffffU, next_live) & kAllTokens;
    next_live = is_live(tile + 1);  // one tile ahead of its use
    ring.wait_full(item);
    typename Products::Scores scores;
    Products::keys_query(scores, q_smem, ring.slot_address(item), first_token_here(), lane_here());
    ring.release(item++, lane_here());
    mask_pass<kAttention, Products>(scores, shared.infos(), tile * kTileKv + first_token_here(),
                                    live_tokens, lane_here(), p.softcap);
    softmax.store_maxima(scores, shared.of_warp(warp_here()), lane_here());
    sync_computing();
    float rescale[kRowTiles][2];
    const bool moved =
        softmax.template update<kSpec.rows>(scores, rescale, shared.of_warp(0), lane_here());
    if (moved) Products::rescale(output, rescale);
    Products::store_probabilities(scores, p_smem, first_token_here(), lane_here());

    ring.wait_full(item);
    const std::uint32_t v = ring.slot_address(item);
    if (live_tokens != kAllTokens) {
      clear_dead_values<Products>(v, first_token_here(), lane_here(), live_tokens);
      // The copy engine writes there next, after these ordinary stores.
      ptx::fence_async_shared();
    }
    sync_computing();
    Products::values_probabilities(output, p_smem, v, warp_here(), lane_here());
    ring.release(item++, lane_here());
  }
  store_pass<kSpec, kRowTiles>(TaskOutput(p, task, kAttention.head_dim), output, softmax, shared,
                               ptx::thread_index_here());
  return item;
}

}  // namespace hpcattn
