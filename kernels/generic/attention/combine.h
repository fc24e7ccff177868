// SPDX-License-Identifier: Apache-2.0
// Rows whose KV range was split: the cta whose partial result arrives last joins all of them, in
// the order of the KV, whoever it is. Many are joined group by group first, so that several ctas
// share the reading. And the rows of padding.
#pragma once

#include "kernels/generic/attention/load_task.h"
#include "kernels/generic/attention/output.h"
#include "kernels/generic/attention/params.h"
#include "kernels/tile/unroll.h"

namespace hpcattn {

inline float4 scaled(const float4& x, float factor) {
  return make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
}

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
      sum = scaled(sum, kept);
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

/// Rows of a combine that one warp joins at once, a lane with parts of each: `first` and every
/// kStep-th after it. kQuadsAtOnce: of a lane, on their way at once.
template <int kHeadDim, int kRows, int kStep, int kQuadsAtOnce>
struct JoinedRows {
  const AttentionParams& p;
  const plan::Combine& c;
  int first;
  int lane;

  int num_rows() const { return c.row_end - c.row_begin; }
  int row(int r) const { return first + r * kStep; }
  bool live(int r) const { return row(r) < num_rows(); }
  RowPlace place(int r) const { return {c.first_token, c.kv_head, p.group, c.row_begin + row(r)}; }

  /// Calls body(dim, sum) for the lane's dims of a row.
  template <typename Body>
  void for_each_quad(const JoinedRow<kHeadDim>& joined, const Body& body) const {
    HPCATTN_UNROLL
    for (int quad = 0; quad < JoinedRow<kHeadDim>::kQuads; ++quad) {
      const int dim = JoinedRow<kHeadDim>::dim_of(quad, lane);
      if (dim < kHeadDim) body(dim, joined.sums[quad]);
    }
  }

  /// Reads all partials; of several, what is read is under way at once.
  void read(JoinedRow<kHeadDim> (&joined)[kRows]) const {
    constexpr int kQuads = JoinedRow<kHeadDim>::kQuads;
    constexpr int kAtOnce = std::max(kQuadsAtOnce / (kRows * kQuads), 1);
    const std::int64_t at = std::int64_t{c.partial} + first;
    const float* lse_from = p.partial_lse + at;
    const float* part_from = p.partial_out + at * kHeadDim + JoinedRow<kHeadDim>::dim_of(0, lane);
    HPCATTN_NO_UNROLL
    for (int split = 0; split < c.num_splits; split += kAtOnce) {
      float lse[kRows][kAtOnce];
      float4 parts[kRows][kAtOnce][kQuads];
      HPCATTN_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        HPCATTN_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const bool there = split + i < c.num_splits && live(r);
          lse[r][i] = there ? __ldcg(lse_from + r * kStep) : negative_infinity();
          HPCATTN_UNROLL
          for (int quad = 0; quad < kQuads; ++quad) {
            parts[r][i][quad] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
            if (there && JoinedRow<kHeadDim>::dim_of(quad, lane) < kHeadDim) {
              parts[r][i][quad] = __ldcg(
                  reinterpret_cast<const float4*>(part_from + r * kStep * kHeadDim + 128 * quad));
            }
          }
        }
        lse_from += c.stride;
        part_from += std::int64_t{c.stride} * kHeadDim;
      }
      HPCATTN_UNROLL
      for (int r = 0; r < kRows; ++r) joined[r].add(lse[r], parts[r]);
    }
  }

  /// To the place of the first partial, where others are joined with it.
  void store_partial(const JoinedRow<kHeadDim> (&joined)[kRows]) const {
    __syncwarp();  // all lanes have read
    HPCATTN_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (!live(r)) continue;
      const RowResult result = finish_row(joined[r].top, joined[r].total, negative_infinity());
      const std::int64_t partial = std::int64_t{c.partial} + row(r);
      if (lane == 0) p.partial_lse[partial] = result.lse;
      for_each_quad(joined[r], [&](int dim, const float4& sum) {
        *reinterpret_cast<float4*>(p.partial_out + partial * kHeadDim + dim) =
            scaled(sum, result.factor);
      });
    }
  }

  /// To out. `values`: value_factor() of the KV head.
  void store(const JoinedRow<kHeadDim> (&joined)[kRows], const float (&sinks)[kRows],
             float values) const {
    RowResult results[kRows];
    HPCATTN_UNROLL
    for (int r = 0; r < kRows; ++r) {
      results[r] = finish_row(joined[r].top, joined[r].total, sinks[r]);
      if (lane > 0 || !live(r)) continue;
      const RowPlace at = place(r);
      store_lse(p.output, at.token, at.head, results[r].lse);
    }
    // One branch for all rows: the work of one hides the latency of another.
    with_out_dtype(p.output, [&](auto dtype) {
      constexpr DType kOut = decltype(dtype)::value;
      HPCATTN_UNROLL
      for (int r = 0; r < kRows; ++r) {
        if (!live(r)) continue;
        const float factor = results[r].factor * values;
        const std::int64_t out_row = place(r).out_row(p.output);
        for_each_quad(joined[r], [&](int dim, const float4& sum) {
          store_quad<kOut>(p.output, out_row, dim, scaled(sum, factor));
        });
      }
    });
  }

  void join(float values) const {
    float sinks[kRows];
    HPCATTN_UNROLL
    for (int r = 0; r < kRows; ++r) {
      sinks[r] = live(r) ? load_sink(p.output, place(r).head) : negative_infinity();
    }
    JoinedRow<kHeadDim> joined[kRows];
    read(joined);
    if (c.next >= 0) {
      store_partial(joined);
    } else {
      store(joined, sinks, values);
    }
  }
};

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
/// of shared memory, `sync` their barrier. Each warp joins kRows rows at once, kQuadsAtOnce: see
/// JoinedRows.
template <int kHeadDim, int kThreads, int kRows, int kQuadsAtOnce, typename Sync>
inline void join_partials(const AttentionParams& p, const plan::Task& task, int* flag, int thread,
                          const Sync& sync) {
  int index = task.combine;
  while (index >= 0) {
    const std::int32_t* const words = p.plan + p.layout.combine(index);
    const auto* const combine = reinterpret_cast<const plan::Combine*>(words);
    const auto c = load_record<plan::Combine>(words);  // under way with what comes
    const float values = value_factor(p.output, c.kv_head);
    sync();
    if (thread == 0) {
      // For all threads: what came before their barrier comes before the arrival, and what others
      // have stored before theirs is seen after the next.
      __threadfence();
      *flag = arrive(p, combine, c.num_splits) ? 1 : 0;
      __threadfence();
    }
    sync();
    if (*flag == 0) return;
    constexpr int kWarps = kThreads / 32;
    HPCATTN_NO_UNROLL
    for (int row = thread / 32; row < c.row_end - c.row_begin; row += kRows * kWarps) {
      JoinedRows<kHeadDim, kRows, kWarps, kQuadsAtOnce>{p, c, row, thread % 32}.join(values);
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
