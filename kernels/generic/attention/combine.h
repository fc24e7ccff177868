// SPDX-License-Identifier: Apache-2.0
// Rows whose KV range was split: the cta whose partial result arrives last joins all of them, in
// the order of the KV, whoever it is. And the rows of padding.
#pragma once

#include "kernels/generic/attention/output.h"
#include "kernels/generic/attention/params.h"
#include "kernels/tile/unroll.h"

namespace hpcattn {

/// One warp, one row; a lane has four neighbouring dims, by turns. Loads of several partials are
/// under way at once.
template <int kHeadDim>
inline void combine_row(const AttentionParams& p, const plan::Combine& c, int row, int lane) {
  constexpr int kQuads = (kHeadDim + 127) / 128;
  constexpr int kAtOnce = 8 / kQuads;
  const int rows = c.row_end - c.row_begin;
  const auto partial_row = [&](int split) { return c.partial + std::int64_t{split} * rows + row; };
  float top = negative_infinity();
  for (int s = lane; s < c.num_splits; s += 32) {
    top = fmaxf(top, __ldcg(p.partial_lse + partial_row(s)));
  }
  HPCATTN_UNROLL
  for (int step = 16; step > 0; step /= 2) {
    top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, step));
  }
  float4 sums[kQuads] = {};
  float total = 0.0F;
  for (int first = 0; first < c.num_splits; first += kAtOnce) {
    float weight[kAtOnce];
    float4 parts[kAtOnce][kQuads];
    HPCATTN_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      const bool there = first + i < c.num_splits;
      const std::int64_t at = partial_row(there ? first + i : first);
      weight[i] = there ? __ldcg(p.partial_lse + at) : negative_infinity();
      HPCATTN_UNROLL
      for (int quad = 0; quad < kQuads; ++quad) {
        const int dim = 4 * lane + 128 * quad;
        parts[i][quad] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
        if (there && dim < kHeadDim) {
          parts[i][quad] =
              __ldcg(reinterpret_cast<const float4*>(p.partial_out + at * kHeadDim + dim));
        }
      }
    }
    HPCATTN_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      // A split that the row sees nothing of counts for nothing, also where none sees anything.
      weight[i] = weight[i] == negative_infinity() ? 0.0F : ptx::ex2(weight[i] - top);
      total += weight[i];
      HPCATTN_UNROLL
      for (int quad = 0; quad < kQuads; ++quad) {
        sums[quad].x = fmaf(parts[i][quad].x, weight[i], sums[quad].x);
        sums[quad].y = fmaf(parts[i][quad].y, weight[i], sums[quad].y);
        sums[quad].z = fmaf(parts[i][quad].z, weight[i], sums[quad].z);
        sums[quad].w = fmaf(parts[i][quad].w, weight[i], sums[quad].w);
      }
    }
  }
  const RowPlace place(c.first_token, c.kv_head, p.group, c.row_begin + row);
  const RowResult result = finish_row(top, total, load_sink(p.output, place.head));
  if (lane == 0) store_lse(p.output, place.token, place.head, result.lse);
  const float factor = result.factor * value_factor(p.output, c.kv_head);
  const std::int64_t out_row = place.out_row(p.output);
  with_out_dtype(p.output, [&](auto dtype) {
    HPCATTN_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      const int dim = 4 * lane + 128 * quad;
      if (dim >= kHeadDim) continue;
      const float4 sum = sums[quad];
      store_pair<decltype(dtype)::value>(p.output, out_row, dim, sum.x * factor, sum.y * factor);
      store_pair<decltype(dtype)::value>(p.output, out_row, dim + 2, sum.z * factor,
                                         sum.w * factor);
    }
  });
}

/// One thread: whether this partial is the last of its combine. The arrivals are counted in the
/// plan; beside the count is the sum of the calls' numbers, which tells when two calls use a plan
/// at once.
inline bool arrive(const AttentionParams& p, const plan::Combine* combine) {
  auto* const arrived =
      reinterpret_cast<unsigned long long*>(const_cast<std::uint32_t*>(combine->arrived));
  const int num_splits = combine->num_splits;
  const unsigned long long mine = (static_cast<unsigned long long>(p.call_id) << 32) + 1;
  const unsigned long long before = atomicAdd(arrived, mine);
  if (static_cast<int>(before) + 1 != num_splits) return false;
  const auto calls = static_cast<std::uint32_t>(before >> 32);
  const std::uint32_t expected = p.call_id * static_cast<std::uint32_t>(num_splits - 1);
  if (calls != expected) {
    report_fault(p.fault, FaultKind::kPlanShared, combine->request, num_splits, calls, expected);
  }
  *reinterpret_cast<volatile unsigned long long*>(arrived) = 0;  // for the next call
  return true;
}

/// After a task's partial result was stored, by all kThreads threads that compute; `flag` is a word
/// of shared memory, `sync` their barrier.
template <int kHeadDim, int kThreads, typename Sync>
inline void join_partials(const AttentionParams& p, const plan::Task& task, int* flag, int thread,
                          const Sync& sync) {
  const auto* const combine =
      reinterpret_cast<const plan::Combine*>(p.plan + p.layout.combine(task.combine));
  __threadfence();  // what this thread has stored comes before the arrival
  sync();
  if (thread == 0) *flag = arrive(p, combine) ? 1 : 0;
  sync();
  if (*flag == 0) return;
  __threadfence();  // what others have stored came before theirs
  const plan::Combine c = *combine;
  for (int row = thread / 32; row < c.row_end - c.row_begin; row += kThreads / 32) {
    combine_row<kHeadDim>(p, c, row, thread % 32);
  }
}

/// Rows past cu_seqlens_q's end: a warp of the grid for each.
template <int kHeadDim, int kThreads>
inline void write_padding(const AttentionParams& p, int thread) {
  constexpr int kWarps = kThreads / 32;
  const std::int64_t live = p.cu_seqlens_q[p.layout.num_requests * p.cu_q_stride];
  const std::int64_t rows = (p.num_tokens - live) * p.num_q_heads;
  for (std::int64_t row = std::int64_t{blockIdx.x} * kWarps + thread / 32; row < rows;
       row += std::int64_t{gridDim.x} * kWarps) {
    const auto token = static_cast<int>(live + row / p.num_q_heads);
    const auto head = static_cast<int>(row % p.num_q_heads);
    const std::int64_t out_row = token * p.output.out_token + head * p.output.out_head;
    if (thread % 32 == 0) store_lse(p.output, token, head, negative_infinity());
    with_out_dtype(p.output, [&](auto dtype) {
      for (int dim = 2 * (thread % 32); dim < kHeadDim; dim += 64) {
        store_pair<decltype(dtype)::value>(p.output, out_row, dim, 0.0F, 0.0F);
      }
    });
  }
}

}  // namespace hpcattn
