// SPDX-License-Identifier: Apache-2.0
// Joins the partial results of rows whose KV range was split, in the order of the KV, and writes
// the rows of padding.
#pragma once

#include "kernels/generic/attention/output.h"
#include "kernels/generic/attention/params.h"
#include "kernels/generic/attention/plan_fits.h"
#include "kernels/generic/combine/config.h"

namespace hpcattn {

/// One warp, one row; lanes hold two dims each, by turns.
template <int kHeadDim>
inline void combine_row(const CombineParams& p, const plan::Combine& c, int row, int lane) {
  const int rows = c.row_end - c.row_begin;
  const RowPlace place(c.first_token, c.kv_head, p.group, c.row_begin + row);
  float top = negative_infinity();
  for (int s = lane; s < c.num_splits; s += 32) {
    top = fmaxf(top, p.partial_lse[c.partial + std::int64_t{s} * rows + row]);
  }
  for (int step = 16; step > 0; step /= 2) {
    top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, step));
  }
  constexpr int kPairs = (kHeadDim + 63) / 64;
  float2 sums[kPairs] = {};
  float total = 0.0F;
  for (int s = 0; s < c.num_splits; ++s) {
    const std::int64_t partial = c.partial + std::int64_t{s} * rows + row;
    const float lse = p.partial_lse[partial];
    if (lse == negative_infinity()) continue;
    const float weight = ptx::ex2(lse - top);
    total += weight;
    for (int i = 0; i < kPairs; ++i) {
      const int dim = 2 * lane + 64 * i;
      if (dim >= kHeadDim) continue;
      const auto part = *reinterpret_cast<const float2*>(p.partial_out + partial * kHeadDim + dim);
      sums[i].x = fmaf(part.x, weight, sums[i].x);
      sums[i].y = fmaf(part.y, weight, sums[i].y);
    }
  }
  const RowResult result = finish_row(top, total, load_sink(p.output, place.head));
  if (lane == 0) store_lse(p.output, place.token, place.head, result.lse);
  const float factor = result.factor * value_factor(p.output, c.kv_head);
  with_out_dtype(p.output, [&](auto dtype) {
    for (int i = 0; i < kPairs; ++i) {
      const int dim = 2 * lane + 64 * i;
      if (dim >= kHeadDim) continue;
      store_pair<decltype(dtype)::value>(p.output, place.out_row(p.output), dim, sums[i].x * factor,
                                         sums[i].y * factor);
    }
  });
}

template <int kHeadDim>
inline void combine(const CombineParams& p) {
  if (!plan_fits(p, nullptr)) return;  // the attention kernel has reported it
  const auto& header = *reinterpret_cast<const plan::Header*>(p.plan);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  constexpr int kWarps = kCombineThreads / 32;
  for (int i = static_cast<int>(blockIdx.x); i < header.num_combines;
       i += static_cast<int>(gridDim.x)) {
    const plan::Combine c = *reinterpret_cast<const plan::Combine*>(p.plan + p.layout.combine(i));
    for (int row = warp; row < c.row_end - c.row_begin; row += kWarps) {
      combine_row<kHeadDim>(p, c, row, lane);
    }
  }
  // Rows of padding: one warp a row.
  const std::int64_t live = p.cu_seqlens_q[p.layout.num_requests * p.cu_q_stride];
  const std::int64_t rows = (p.num_tokens - live) * p.num_q_heads;
  for (std::int64_t row = std::int64_t{blockIdx.x} * kWarps + warp; row < rows;
       row += std::int64_t{gridDim.x} * kWarps) {
    const auto token = static_cast<int>(live + row / p.num_q_heads);
    const auto head = static_cast<int>(row % p.num_q_heads);
    const std::int64_t out_row = token * p.output.out_token + head * p.output.out_head;
    if (lane == 0) store_lse(p.output, token, head, negative_infinity());
    with_out_dtype(p.output, [&](auto dtype) {
      for (int dim = 2 * lane; dim < kHeadDim; dim += 64) {
        store_pair<decltype(dtype)::value>(p.output, out_row, dim, 0.0F, 0.0F);
      }
    });
  }
}

}  // namespace hpcattn
