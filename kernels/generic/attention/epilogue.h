// SPDX-License-Identifier: Apache-2.0
// The end of a task: the output of its rows, or of a split its partial result.
#pragma once

#include <cstdint>

#include "kernels/generic/attention/multiply.h"
#include "kernels/generic/attention/output.h"
#include "kernels/ptx/thread.h"

namespace hpcattn {

/// Where a task's rows go, final or partial.
struct TaskOutput {
  const AttentionParams& p;
  plan::Task task;
  int head_dim;
  float values;  // factor of the output

  TaskOutput(const AttentionParams& params, const plan::Task& t, int dims)
      : p(params), task(t), head_dim(dims), values(value_factor(params.output, t.kv_head)) {}

  bool live(int i) const { return task.row_begin + i < task.row_end; }
  RowPlace place(int i) const {
    return {task.first_token, task.kv_head, p.group, task.row_begin + i};
  }

  /// How row `i` of the task is to be finished; writes its LSE where `writes`.
  RowResult finish(int i, float reference, float sum, bool writes) const {
    if (task.partial >= 0) {
      const RowResult result = finish_row(reference, sum, negative_infinity());
      if (writes) p.partial_lse[task.partial + i] = result.lse;
      return result;
    }
    const RowPlace at = place(i);
    RowResult result = finish_row(reference, sum, load_sink(p.output, at.head));
    if (writes) store_lse(p.output, at.token, at.head, result.lse);
    result.factor *= values;
    return result;
  }

  /// Calls for_each_pair(visit) for row `i` with a visit(dim, a, b) that stores.
  template <typename ForEachPair>
  void store(int i, float factor, const ForEachPair& for_each_pair) const {
    if (task.partial >= 0) {
      auto* row = p.partial_out + (std::int64_t{task.partial} + i) * head_dim;
      for_each_pair([&](int dim, float a, float b) {
        *reinterpret_cast<float2*>(row + dim) = make_float2(a * factor, b * factor);
      });
      return;
    }
    const std::int64_t row = place(i).out_row(p.output);
    with_out_dtype(p.output, [&](auto dtype) {
      for_each_pair([&](int dim, float a, float b) {
        store_pair<decltype(dtype)::value>(p.output, row, dim, a * factor, b * factor);
      });
    });
  }
};

/// Each warp has rows of its own: from the registers, as they lie.
template <typename Products, typename Softmax>
inline void store_rows(const TaskOutput& target, int first_row,
                       const typename Products::Output& output, const Softmax& softmax) {
  const int lane = ptx::thread_index_here() % 32;
  HPCATTN_UNROLL
  for (int tile = 0; tile < Products::kRowTiles; ++tile) {
    HPCATTN_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + tile * 16 + half * 8 + lane / 4;
      if (!target.live(row)) continue;
      const RowResult result =
          target.finish(row, softmax.reference[tile][half], softmax.sum[tile][half], lane % 4 == 0);
      target.store(row, result.factor, [&](const auto& visit) {
        Products::for_each_pair(output[tile], half, lane, visit);
      });
    }
  }
}

/// All warps have the same 16 rows, over tokens of their own: added up in shared memory, always in
/// the same order. `maxima` [warps][16], `room` [warps][16][head_dim + 8] may be the ring's slots.
template <typename Products, typename Softmax>
inline void reduce_and_store_rows(const TaskOutput& target, const typename Products::Output& output,
                                  const Softmax& softmax, float2* maxima, float* room) {
  constexpr int kDims = Products::Config::kHeadDim;
  constexpr int kStride = kDims + 8;  // rows two apart lie in other banks
  const int thread = ptx::thread_index_here();
  const int lane = thread % 32;
  const int warp = thread / 32;
  HPCATTN_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = half * 8 + lane / 4;
    if (lane % 4 == 0) {
      maxima[warp * 16 + row] = make_float2(softmax.reference[0][half], softmax.sum[0][half]);
    }
    Products::for_each_pair(output[0], half, lane, [&](int dim, float a, float b) {
      *reinterpret_cast<float2*>(room + (warp * 16 + row) * kStride + dim) = make_float2(a, b);
    });
  }
  __syncthreads();

  constexpr int kThreadsPerRow = kAttentionThreads / 16;
  const int row = thread / kThreadsPerRow;
  const int first = thread % kThreadsPerRow;
  if (!target.live(row)) return;
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
  constexpr int kPairs = kDims / 2 / kThreadsPerRow;
  static_assert(kPairs * 2 * kThreadsPerRow == kDims);
  const auto dim_of = [first](int pair) { return 2 * (first + pair * kThreadsPerRow); };
  float2 totals[kPairs] = {};
  HPCATTN_UNROLL
  for (int pair = 0; pair < kPairs; ++pair) {
    HPCATTN_UNROLL
    for (int w = 0; w < kAttentionWarps; ++w) {
      const float* const parts = room + (w * 16 + row) * kStride;
      const auto part = *reinterpret_cast<const float2*>(parts + dim_of(pair));
      totals[pair].x = fmaf(part.x, share[w], totals[pair].x);
      totals[pair].y = fmaf(part.y, share[w], totals[pair].y);
    }
  }
  const RowResult result = target.finish(row, top, sum, first == 0);
  target.store(row, result.factor, [&](const auto& visit) {
    HPCATTN_UNROLL
    for (int pair = 0; pair < kPairs; ++pair) visit(dim_of(pair), totals[pair].x, totals[pair].y);
  });
}

}  // namespace hpcattn
