// SPDX-License-Identifier: Apache-2.0
// Output of 16 bits on its way from the accumulators to memory: through shared memory, so that a
// warp writes whole rows, 16 bytes a lane.
#pragma once

#include <cstdint>

#include "kernels/generic/attention/epilogue.h"
#include "kernels/ptx/memory.h"
#include "kernels/sm90/prefill/config.h"
#include "kernels/sm90/prefill/multiply.h"

namespace hpcattn {

/// Whether the rows of a task can go this way.
inline bool stores_whole_rows(const AttentionParams& p, const plan::Task& task) {
  return task.partial < 0 && p.output.out_vectors && size_bytes(p.output.out_dtype) == 2;
}

/// One warp's 16 rows, from row `first_row` of the task on. They pass through where q of these rows
/// was, `q` being the place of the first: the products are done with it. A line of q has room for
/// kLineBytes of each row at once.
template <PrefillSpec kSpec, typename Softmax>
inline void store_whole_rows(const TaskOutput& target, int first_row,
                             const typename PrefillProducts<kSpec>::Output& output,
                             const Softmax& softmax, std::uint32_t q, int lane) {
  using Products = PrefillProducts<kSpec>;
  constexpr PrefillLayout kLayout = Products::kLayout;
  constexpr int kLineBytes = kLayout.line_bytes;
  constexpr int kUnits = kLineBytes / 16;
  constexpr int kLineDims = kLineBytes / 2;
  constexpr int kRowsAtOnce = 32 / kUnits;
  constexpr int kParts = 16 / kRowsAtOnce;
  const AttentionOutput& o = target.p.output;

  float factors[2];
  HPCATTN_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + half * 8 + lane / 4;
    factors[half] = 0.0F;
    if (!target.live(row)) continue;
    factors[half] =
        target.finish(row, softmax.reference[0][half], softmax.sum[0][half], lane % 4 == 0).factor;
  }
  // Of the rows that this lane writes.
  std::uint16_t* rows[kParts];
  HPCATTN_UNROLL
  for (int part = 0; part < kParts; ++part) {
    const int row = first_row + part * kRowsAtOnce + lane / kUnits;
    rows[part] =
        static_cast<std::uint16_t*>(o.out) + target.place(row).out_row(o) + lane % kUnits * 8;
    if (!target.live(row)) rows[part] = nullptr;
  }
  HPCATTN_UNROLL
  for (int first_dim = 0; first_dim < Products::Config::kHeadDim; first_dim += kLineDims) {
    const int line = first_dim / kLineDims % kLayout.lines;
    const std::uint32_t place = q + line * kLayout.rows * kLineBytes;
    if (first_dim >= kLineDims * kLayout.lines) __syncwarp();  // what was there was written out
    const auto& of_line =
        *reinterpret_cast<const float (*)[kLineDims / 8][4]>(&output[0][first_dim / 8]);
    const auto stage = [&](auto dtype) {
      HPCATTN_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = half * 8 + lane / 4;
        for_each_output_pair<Products::kFp8>(of_line, half, lane, [&](int dim, float a, float b) {
          const int unit = swizzled_unit(kLineBytes, row, dim / 8);
          ptx::store_shared(
              place + row * kLineBytes + unit * 16 + dim % 8 * 2,
              encode_pair<decltype(dtype)::value>(a * factors[half], b * factors[half]));
        });
      }
    };
    if (o.out_dtype == DType::kBFloat16) {
      stage(DTypeConstant<DType::kBFloat16>{});
    } else {
      stage(DTypeConstant<DType::kFloat16>{});
    }
    __syncwarp();
    HPCATTN_UNROLL
    for (int part = 0; part < kParts; ++part) {
      const int row = part * kRowsAtOnce + lane / kUnits;
      const int unit = swizzled_unit(kLineBytes, row, lane % kUnits);
      const uint4 words = ptx::load_shared_16(place + row * kLineBytes + unit * 16);
      if (rows[part] != nullptr) *reinterpret_cast<uint4*>(rows[part] + first_dim) = words;
    }
  }
}

}  // namespace hpcattn
