// SPDX-License-Identifier: Apache-2.0
// Rows whose KV range was split: the cta whose partial result arrives last joins all of them, in
// the order of the KV, whoever it is. Many are joined group by group first, so that several ctas
// share the reading. And the rows of padding.
#pragma once

#include "kernels/generic/attention/output.h"
#include "kernels/generic/attention/params.h"
#include "kernels/tile/unroll.h"

namespace hpcattn {

/// The partial results of a row, joined: a lane has four neighbouring dims, by turns.
template <int kHeadDim>
struct JoinedRow {
  static constexpr int kQuads = (kHeadDim + 127) / 128;
  float top = negative_infinity();
  float total = 0.0F;
  float4 sums[kQuads] = {};

  static int dim_of(int quad, int lane) { return 4 * lane + 128 * quad; }

  /// kCount partials more, of which a lane's parts and LSEs have been loaded; an LSE of -inf counts
  /// for nothing, also where none sees anything.
  template <int kCount>
  void add(const float (&lse)[kCount], const float4 (&parts)[kCount][kQuads]) {
    float largest = top;
    HPCATTN_UNROLL
    for (float one : lse) largest = fmaxf(largest, one);
    const auto weight_of = [&](float one) {
      return one == negative_infinity() ? 0.0F : ptx::ex2(one - largest);
    };
    const float kept = weight_of(top);
    top = largest;
    total *= kept;
    HPCATTN_UNROLL
    for (float4& sum : sums) {
      sum = make_float4(sum.x * kept, sum.y * kept, sum.z * kept, sum.w * kept);
    }
    HPCATTN_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const float weight = weight_of(lse[i]);
      total += weight;
      HPCATTN_UNROLL
      for (int quad = 0; quad < kQuads; ++quad) {
        sums[quad].x = fmaf(parts[i][quad].x, weight, sums[quad].x);
        sums[quad].y = fmaf(parts[i][quad].y, weight, sums[quad].y);
        sums[quad].z = fmaf(parts[i][quad].z, weight, sums[quad].z);
        sums[quad].w = fmaf(parts[i][quad].w, weight, sums[quad].w);
      }
    }
  }
};

/// What was joined of row `row`, to the place of its first partial, or to out.
template <int kHeadDim>
inline void store_joined(const AttentionParams& p, const plan::Combine& c, int row, int lane,
                         const JoinedRow<kHeadDim>& joined) {
  constexpr int kQuads = JoinedRow<kHeadDim>::kQuads;
  const auto for_each_quad = [&](const auto& visit) {
    HPCATTN_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      const int dim = JoinedRow<kHeadDim>::dim_of(quad, lane);
      if (dim < kHeadDim) visit(dim, joined.sums[quad]);
    }
  };
  if (c.next >= 0) {
    const RowResult result = finish_row(joined.top, joined.total, negative_infinity());
    const std::int64_t partial = std::int64_t{c.partial} + row;
    __syncwarp();  // all lanes have read
    if (lane == 0) p.partial_lse[partial] = result.lse;
    for_each_quad([&](int dim, const float4& sum) {
      *reinterpret_cast<float4*>(p.partial_out + partial * kHeadDim + dim) =
          make_float4(sum.x * result.factor, sum.y * result.factor, sum.z * result.factor,
                      sum.w * result.factor);
    });
    return;
  }
  const RowPlace place(c.first_token, c.kv_head, p.group, c.row_begin + row);
  const RowResult result = finish_row(joined.top, joined.total, load_sink(p.output, place.head));
  if (lane == 0) store_lse(p.output, place.token, place.head, result.lse);
  const float factor = result.factor * value_factor(p.output, c.kv_head);
  const std::int64_t out_row = place.out_row(p.output);
  with_out_dtype(p.output, [&](auto dtype) {
    for_each_quad([&](int dim, const float4& sum) {
      store_pair<decltype(dtype)::value>(p.output, out_row, dim, sum.x * factor, sum.y * factor);
      store_pair<decltype(dtype)::value>(p.output, out_row, dim + 2, sum.z * factor,
                                         sum.w * factor);
    });
  });
}

/// One warp, two rows (the second perhaps none): what is read of several partials of both is under
/// way at once.
template <int kHeadDim>
inline void combine_rows(const AttentionParams& p, const plan::Combine& c, const int (&rows)[2],
                         int lane) {
  constexpr int kQuads = JoinedRow<kHeadDim>::kQuads;
  constexpr int kAtOnce = 8 / kQuads;
  const int num_rows = c.row_end - c.row_begin;
  JoinedRow<kHeadDim> joined[2];
  HPCATTN_NO_UNROLL
  for (int first = 0; first < c.num_splits; first += kAtOnce) {
    float lse[2][kAtOnce];
    float4 parts[2][kAtOnce][kQuads];
    HPCATTN_UNROLL
    for (int r = 0; r < 2; ++r) {
      HPCATTN_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const bool there = first + i < c.num_splits && rows[r] < num_rows;
        const std::int64_t at = c.partial + std::int64_t{first + i} * c.stride + rows[r];
        lse[r][i] = there ? __ldcg(p.partial_lse + at) : negative_infinity();
        HPCATTN_UNROLL
        for (int quad = 0; quad < kQuads; ++quad) {
          const int dim = JoinedRow<kHeadDim>::dim_of(quad, lane);
          parts[r][i][quad] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
          if (there && dim < kHeadDim) {
            parts[r][i][quad] =
                __ldcg(reinterpret_cast<const float4*>(p.partial_out + at * kHeadDim + dim));
          }
        }
      }
    }
    HPCATTN_UNROLL
    for (int r = 0; r < 2; ++r) joined[r].add(lse[r], parts[r]);
  }
  HPCATTN_UNROLL
  for (int r = 0; r < 2; ++r) {
    if (rows[r] < num_rows) store_joined(p, c, rows[r], lane, joined[r]);
  }
}

/// One thread: whether this partial is the last of its combine. The arrivals are counted in the
/// plan; beside the count is the sum of the calls' numbers, which tells when two calls use a plan
/// at once.
inline bool arrive(const AttentionParams& p, const plan::Combine* combine, int num_splits) {
  auto* const arrived =
      reinterpret_cast<unsigned long long*>(const_cast<std::uint32_t*>(combine->arrived));
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
  int index = task.combine;
  while (index >= 0) {
    const auto* const combine =
        reinterpret_cast<const plan::Combine*>(p.plan + p.layout.combine(index));
    const plan::Combine c = *combine;  // under way with what comes
    __threadfence();                   // what this thread has stored comes before the arrival
    sync();
    if (thread == 0) *flag = arrive(p, combine, c.num_splits) ? 1 : 0;
    sync();
    if (*flag == 0) return;
    __threadfence();  // what others have stored came before theirs
    constexpr int kWarps = kThreads / 32;
    HPCATTN_NO_UNROLL
    for (int row = thread / 32; row < c.row_end - c.row_begin; row += 2 * kWarps) {
      combine_rows<kHeadDim>(p, c, {row, row + kWarps}, thread % 32);
    }
    index = c.next;
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
