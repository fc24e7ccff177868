// SPDX-License-Identifier: Apache-2.0
// One narrow task: K and V stream through the ring, each warp takes 16 tokens of every tile, and
// the four warps' results are added up at the end.
#pragma once

#include "kernels/generic/attention/epilogue.h"
#include "kernels/generic/attention/query.h"
#include "kernels/generic/attention/scores.h"
#include "kernels/sm90/decode/multiply.h"
#include "kernels/sm90/decode/ring.h"

namespace hpcattn {

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
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};\n" ::"r"(
                     Line(slot, first_token + token).unit(i % kUnits)),
                 "r"(0)
                 : "memory");
  }
  __syncwarp();
}

/// Returns the ring's next item.
template <DecodeSpec kSpec, int kRowTiles>
inline int run_narrow_task(const DecodeParams& params, const plan::Task& task, char* base,
                           const DecodeRing<kSpec>& ring, int item) {
  constexpr AttentionSpec kAttention = kSpec.attention;
  using Config = AttentionConfig<kAttention>;
  using Products = DecodeProducts<kSpec, kRowTiles>;
  using Ring = DecodeRing<kSpec>;
  constexpr int kTileKv = DecodeLayout::kTileKv;
  // Copies under way; one slot less than there are, so that nobody waits for the slowest warp.
  constexpr int kAhead = Ring::kSlots - 1;
  const AttentionParams& p = params.attention;

  const int thread = ptx::thread_index_here();
  const int warp = thread / 32;
  const int lane = thread % 32;
  auto* const infos = reinterpret_cast<RowInfo*>(base + Config::kStateBytes);
  auto* const maxima = reinterpret_cast<float2*>(base + Config::kStateBytes + Config::kInfoBytes +
                                                 Config::kPagesBytes);
  char* const q_smem = base + Config::kFixedBytes;

  int tile = task.kv_begin / kTileKv;
  const int end_tile = task.kv_end > task.kv_begin ? (task.kv_end + kTileKv - 1) / kTileKv : tile;
  const int end_item = item + 2 * (end_tile - tile);

  DecodeLoader<kSpec> loader(params, ring, task, lane);
  int load_item = item;
  int load_tile = tile;
  const auto load_next = [&] {
    if (warp != 0 || load_item >= end_item) return;
    if ((end_item - load_item) % 2 == 0) {
      loader.load_k(load_tile, load_item);
    } else {
      loader.load_v(load_tile, load_item);
      ++load_tile;
    }
    ++load_item;
  };
  if (warp == 0) loader.look_up(tile);
  for (int i = 0; i < kAhead; ++i) load_next();
  // This warp's 16 tokens of a tile lie on one page; below 0 where there is none.
  const auto page_of = [&](int of_tile) {
    const int first = of_tile * kTileKv + warp * 16;
    if (first >= task.kv_end || first + 16 <= task.kv_begin) return 0;
    return p.page_table[task.request * p.table_request + first / kSpec.page_size * p.table_page];
  };
  int page = page_of(tile);

  write_row_infos<kAttention, 16>(p, task, infos, thread);
  store_query<kAttention, 16>(p, task, q_smem, thread);
  __syncthreads();
  typename Products::Query query;
  Products::load_query(query, ptx::shared_address(q_smem), lane);

  const int t = lane % 4;
  typename Products::Output output;
  HPCATTN_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    HPCATTN_UNROLL
    for (int n = 0; n < Products::kDimTiles; ++n) {
      HPCATTN_UNROLL
      for (int e = 0; e < 4; ++e) output[r][n][e] = 0.0F;
    }
  }
  DecodeSoftmax<kRowTiles> softmax;
  const int first_token = warp * 16;

  for (; tile < end_tile; ++tile) {
    ring.wait_full(item);
    typename Products::Scores scores;
    Products::keys_query(scores, query, ring.slot_address(item), first_token, lane);
    ring.release(item++, lane);
    load_next();

    const int token = tile * kTileKv + first_token + lane / 4;
    // Which of this warp's tokens are live: inside of the task, on a page that exists.
    unsigned live_tokens = page < 0 ? 0U : 0xffffU;
    if (tile * kTileKv < task.kv_begin || tile * kTileKv + kTileKv > task.kv_end) {
      const int mine = tile * kTileKv + first_token + lane % 16;
      live_tokens &= __ballot_sync(0xffffffffU, mine >= task.kv_begin && mine < task.kv_end);
    }
    page = page_of(tile + 1);
    HPCATTN_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      HPCATTN_UNROLL
      for (int e = 0; e < 2; ++e) {
        const RowInfo& row = infos[r * 8 + 2 * t + e];
        HPCATTN_UNROLL
        for (int half = 0; half < 2; ++half) {
          float& score = scores[r][e + 2 * half];
          const int j = token + 8 * half;
          if constexpr (kAttention.softcap || kAttention.alibi) {
            score = transform_score<kAttention>(score, row, static_cast<float>(row.position - j),
                                                p.softcap);
          } else {
            score *= row.factor;
          }
          const bool seen = j >= row.kv_begin && j < row.kv_end &&
                            (live_tokens >> (lane / 4 + 8 * half) & 1U) != 0;
          score = seen ? score : negative_infinity();
        }
      }
    }
    float rescale[kRowTiles][2];
    if (softmax.update(scores, rescale)) {
      HPCATTN_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        HPCATTN_UNROLL
        for (int n = 0; n < Products::kDimTiles; ++n) {
          HPCATTN_UNROLL
          for (int e = 0; e < 4; ++e) output[r][n][e] *= rescale[r][e % 2];
        }
      }
    }

    ring.wait_full(item);
    const std::uint32_t v = ring.slot_address(item);
    if (live_tokens != 0xffffU) {
      clear_dead_values<Products>(v, first_token, lane, live_tokens);
    }
    Products::values_probabilities(output, scores, v, first_token, lane);
    if (live_tokens != 0xffffU) ptx::fence_async_shared();
    ring.release(item++, lane);
    load_next();
  }
  softmax.finish();

  // The warps' results, added up in an order of their own: [warp][row][dim], four floats more a row
  // keep the lanes' stores in unlike banks.
  const TaskOutput target(p, task, Config::kHeadDim);
  constexpr int kStride = Config::kHeadDim + 4;
  constexpr int kRows = 8 * kRowTiles;
  float* const room = reinterpret_cast<float*>(base + Config::kFixedBytes + 16 * Config::kQStride);
  HPCATTN_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    HPCATTN_UNROLL
    for (int e = 0; e < 2; ++e) {
      const int row = r * 8 + 2 * t + e;
      if (lane / 4 == 0) {
        maxima[warp * 16 + row] = make_float2(softmax.reference[r][e], softmax.sum[r][e]);
      }
    }
  }
  __syncthreads();  // all warps have read their last slot: what follows may write over the ring
  HPCATTN_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    HPCATTN_UNROLL
    for (int n = 0; n < Products::kDimTiles; ++n) {
      HPCATTN_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int row = r * 8 + 2 * t + e % 2;
        room[(warp * kRows + row) * kStride + n * 16 + lane / 4 + e / 2 * 8] = output[r][n][e];
      }
    }
  }
  __syncthreads();
  constexpr int kThreadsPerRow = kAttentionThreads / kRows;
  const int row = thread / kThreadsPerRow;
  const int first = thread % kThreadsPerRow;
  if (target.live(row)) {
    float top = negative_infinity();
    HPCATTN_UNROLL
    for (int w = 0; w < kAttentionWarps; ++w) top = fmaxf(top, maxima[w * 16 + row].x);
    float share[kAttentionWarps];
    float sum = 0.0F;
    HPCATTN_UNROLL
    for (int w = 0; w < kAttentionWarps; ++w) {
      const float2 part = maxima[w * 16 + row];
      share[w] = top == negative_infinity() ? 0.0F : ptx::ex2(part.x - top);
      sum += part.y * share[w];
    }
    const RowResult result = target.finish(row, top, sum, first == 0);
    target.store(row, result.factor, [&](const auto& visit) {
      for (int dim = 2 * first; dim < Config::kHeadDim; dim += 2 * kThreadsPerRow) {
        float2 total = make_float2(0.0F, 0.0F);
        HPCATTN_UNROLL
        for (int w = 0; w < kAttentionWarps; ++w) {
          const auto part =
              *reinterpret_cast<const float2*>(room + (w * kRows + row) * kStride + dim);
          total.x = fmaf(part.x, share[w], total.x);
          total.y = fmaf(part.y, share[w], total.y);
        }
        visit(dim, total.x, total.y);
      }
    });
  }
  ptx::fence_async_shared();  // the room is the ring's again
  __syncthreads();
  return end_item;
}

}  // namespace hpcattn
