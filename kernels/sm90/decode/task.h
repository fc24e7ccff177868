// SPDX-License-Identifier: Apache-2.0
// One narrow task: K and V stream through the ring, each warp takes 16 tokens of every tile, and
// the four warps' results are added up at the end.
#pragma once

#include "kernels/generic/attention/epilogue.h"
#include "kernels/generic/attention/query.h"
#include "kernels/generic/attention/scores.h"
#include "kernels/ptx/memory.h"
#include "kernels/sm90/decode/multiply.h"
#include "kernels/sm90/decode/params.h"
#include "kernels/sm90/decode/ring.h"
#include "kernels/sm90/decode/tasks.h"

namespace hpcattn {

/// Named barrier of the warps that compute.
inline constexpr int kComputeBarrier = 1;

/// Running softmax of the columns of S^T that a lane has; see Softmax in scores.h.
template <int kRowTiles>
struct DecodeSoftmax {
  static constexpr float kSlack = 8.0F;
  float reference[kRowTiles][2];
  float sum[kRowTiles][2];

  DecodeSoftmax() {
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      HPCATTN_UNROLL
      for (int e = 0; e < 2; ++e) {
        reference[r][e] = negative_infinity();
        sum[r][e] = 0.0F;
      }
    }
  }

  /// Scores in log2 units become probabilities, not normalised; returns whether any lane's
  /// `rescale` is not 1.
  bool update(float (&scores)[kRowTiles][4], float (&rescale)[kRowTiles][2]) {
    bool moved = false;
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      HPCATTN_UNROLL
      for (int e = 0; e < 2; ++e) {
        float top = fmaxf(scores[r][e], scores[r][e + 2]);
        HPCATTN_UNROLL
        for (int step = 4; step <= 16; step *= 2) {
          top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, step));
        }
        float& kept = reference[r][e];
        const bool moves = top > kept + kSlack;
        rescale[r][e] = moves ? ptx::ex2(kept - top) : 1.0F;
        kept = moves ? top : kept;
        sum[r][e] *= rescale[r][e];
        moved = moved || moves;
        const float shift = kept == negative_infinity() ? 0.0F : kept;
        HPCATTN_UNROLL
        for (int half = 0; half < 2; ++half) {
          float& score = scores[r][e + 2 * half];
          score = ptx::ex2(score - shift);
          sum[r][e] += score;
        }
      }
    }
    return __any_sync(0xffffffffU, moved);
  }

  /// Adds the tokens of all lanes.
  void finish() {
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      HPCATTN_UNROLL
      for (int e = 0; e < 2; ++e) {
        HPCATTN_UNROLL
        for (int step = 4; step <= 16; step *= 2) {
          sum[r][e] += __shfl_xor_sync(0xffffffffU, sum[r][e], step);
        }
      }
    }
  }
};

/// Rows of V of tokens that no row sees become zeros: 0 times what lies there may be NaN. A warp
/// clears its own 16 tokens.
template <typename Products>
inline void clear_dead_values(std::uint32_t slot, int first_token, int lane, unsigned live_tokens) {
  using Line = typename Products::Line;
  constexpr int kUnits = Products::Config::kHeadDim * Products::Config::kKvBytes / 16;
  for (int i = lane; i < 16 * kUnits; i += 32) {
    const int token = i / kUnits;
    if (live_tokens >> token & 1U) continue;
    ptx::clear_shared_16(Line(slot, first_token + token).unit(i % kUnits));
  }
  __syncwarp();
}

/// Soft cap, ALiBi, scale and mask: raw scores become scores in log2 units, -inf where a row does
/// not see a token. `token`: the warp's first.
template <AttentionSpec kSpec, typename Products>
inline void mask_pass(typename Products::Scores& scores, const RowInfo* infos, int token,
                      unsigned live_tokens, int lane, float softcap) {
  HPCATTN_UNROLL
  for (int r = 0; r < Products::kTiles; ++r) {
    HPCATTN_UNROLL
    for (int e = 0; e < 2; ++e) {
      const RowInfo& row = infos[r * 8 + lane % 4 * 2 + e];
      HPCATTN_UNROLL
      for (int half = 0; half < 2; ++half) {
        float& score = scores[r][e + 2 * half];
        const int place = lane / 4 + 8 * half;
        if constexpr (kSpec.softcap || kSpec.alibi) {
          score = transform_score<kSpec>(score, row,
                                         static_cast<float>(row.position - token - place), softcap);
        } else {
          score *= row.factor;
        }
        const bool seen = token + place >= row.kv_begin && token + place < row.kv_end &&
                          (live_tokens >> place & 1U) != 0;
        score = seen ? score : negative_infinity();
      }
    }
  }
}

/// The warps' results, added up in an order that is always the same, eight rows at a time.
template <DecodeSpec kSpec, int kRowTiles>
inline void add_up_and_store(const TaskOutput& target,
                             const typename DecodeProducts<kSpec, kRowTiles>::Output& output,
                             const DecodeSoftmax<kRowTiles>& softmax, char* base, int thread) {
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
        sums[(warp * 8 + 2 * t + e % 2) * kStride + n * 16 + lane / 4 + e / 2 * 8] =
            output[r][n][e];
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
  constexpr int kTileKv = DecodeLayout::kTileKv;
  const AttentionParams& p = params.attention;
  const plan::Task task = load_pass(p, pass);

  const int thread = ptx::thread_index_here();
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int first_token = warp * 16;  // of this warp in each tile
  auto* const infos = reinterpret_cast<RowInfo*>(base);
  char* const q_smem = base + kLayout.q_offset;
  write_row_infos<kAttention, 8 * kRowTiles>(p, task, infos, thread);
  store_query<kAttention, kDecodeRows>(p, task, q_smem, thread);
  ptx::barrier_sync(kComputeBarrier, kAttentionThreads);
  typename Products::Query query;
  Products::load_query(query, ptx::shared_address(q_smem), lane);

  // This warp's 16 tokens of a tile lie on one page; below 0 where there is none.
  const auto page_of = [&](int tile) {
    const int token = tile * kTileKv + first_token;
    if (token >= task.kv_end || token + 16 <= task.kv_begin) return 0;
    return p.page_table[task.request * p.table_request + token / kSpec.page_size * p.table_page];
  };
  typename Products::Output output;
  Products::clear(output);
  DecodeSoftmax<kRowTiles> softmax;
  const TileRange tiles(task);
  int page = page_of(tiles.begin);
  for (int tile = tiles.begin; tile < tiles.end; ++tile) {
    ring.wait_full(item);
    typename Products::Scores scores;
    // The lane is read anew in each tile: what follows from it would be kept for all of them, and
    // take registers that are not there.
    Products::keys_query(scores, query, ring.slot_address(item), first_token,
                         ptx::thread_index_here() % 32);
    ring.release(item++, lane);

    const int begin = tile * kTileKv;
    // Which of this warp's tokens are live: inside of the task, on a page that exists.
    unsigned live_tokens = page < 0 ? 0U : 0xffffU;
    if (begin < task.kv_begin || begin + kTileKv > task.kv_end) {
      const int mine = begin + first_token + lane % 16;
      live_tokens &= __ballot_sync(0xffffffffU, mine >= task.kv_begin && mine < task.kv_end);
    }
    page = page_of(tile + 1);
    mask_pass<kAttention, Products>(scores, infos, begin + first_token, live_tokens, lane,
                                    p.softcap);
    float rescale[kRowTiles][2];
    if (softmax.update(scores, rescale)) Products::rescale(output, rescale);

    ring.wait_full(item);
    const std::uint32_t v = ring.slot_address(item);
    if (live_tokens != 0xffffU) {
      clear_dead_values<Products>(v, first_token, lane, live_tokens);
    }
    Products::values_probabilities(output, scores, v, first_token, ptx::thread_index_here() % 32);
    // The copy engine writes there next, after these ordinary stores.
    if (live_tokens != 0xffffU) ptx::fence_async_shared();
    ring.release(item++, lane);
  }
  softmax.finish();
  add_up_and_store<kSpec, kRowTiles>(TaskOutput(p, load_pass(p, pass), kAttention.head_dim), output,
                                     softmax, base, thread);
  return item;
}

}  // namespace hpcattn
