// SPDX-License-Identifier: Apache-2.0
// What the prologue and the KV store do to one row: the head_dim numbers of one head of one token.
//
// Rows are held in float64 between their load and their store. A rotation may cancel nearly all of
// a number, and in float32 what is left of it is then further from the right value than one ulp of
// float16; in float64 every dtype is rounded once. The work stays below that of moving the bytes.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "hpcattn/dtype.h"
#include "hpcattn/rope.h"

namespace hpcattn::cpu {

/// One set of these for each instruction set; all sets give the same bits but for the order of
/// sums.
struct RowOps {
  const char* isa;

  /// x[i] = row[i]; float32, float16 or bfloat16.
  void (*load)(const void* row, DType dtype, std::int64_t n, double* x);

  /// row[i] = x[i], rounded once to nearest even (numbers below float32's normal ones: within an
  /// ulp); fp8 alone: x[i] / scale, saturated.
  void (*store)(const double* x, double scale, std::int64_t n, void* row, DType dtype);

  double (*sum_squares)(const double* x, std::int64_t n);

  /// The largest |x[i]| that is a number; 0 where there is none.
  double (*max_abs)(const double* x, std::int64_t n);

  /// x[i] *= weight[i] * factor.
  void (*scale)(double* x, const double* weight, double factor, std::int64_t n);

  /// Turns pair i by the angle of cos[i] and sin[i]. Pairs are (i, i + num_pairs), or (2i, 2i + 1).
  void (*rotate)(double* x, const double* cos, const double* sin, std::int64_t num_pairs,
                 RopeStyle style);
};

/// Memory for rows, on cache lines of its own: vectors that straddle two lines cost twice.
class RowBuffer {
 public:
  explicit RowBuffer(std::int64_t n) : lines_(static_cast<std::size_t>((n + 7) / 8)) {}
  double* data() { return lines_.empty() ? nullptr : lines_.data()->numbers; }

 private:
  struct alignas(64) Line {
    double numbers[8];
  };
  std::vector<Line> lines_;
};

/// The set of the instruction set that the attention kernels use: the best one, or HPCATTN_CPU_ISA.
const RowOps& row_ops();

/// That of one of usable_isas() (src/cpu/attention/dispatch.h).
const RowOps& row_ops(std::string_view isa);

}  // namespace hpcattn::cpu
