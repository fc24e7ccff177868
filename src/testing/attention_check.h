// SPDX-License-Identifier: Apache-2.0
// Judging the outputs of an attention call.
#pragma once

#include <string>

#include "src/cpu/reference/attention.h"
#include "src/testing/attention_case.h"

namespace hpcattn::testkit {

/// How a kernel computes, as far as its error depends on it. The default is the CPU's: float32 with
/// rounding to nearest everywhere.
struct Arithmetic {
  /// Tensor cores, which cut sums instead of rounding them, and exp2, tanh and log of the
  /// special-function units.
  bool tensor_cores = false;
  /// P is rounded before it meets V: unit roundoff, and spacing of the numbers near 0.
  double p_roundoff = 0.0;
  double p_smallest = 0.0;
  /// Of products of fp8, which Hopper's tensor cores add 32 at a time to so few bits: the last of
  /// them, of the largest addend.
  double sum_unit = 0.0;
};

/// Of the GPU's kernels: P in bfloat16 for a bfloat16 q, else in float16; in e4m3 where q, K and V
/// are and Hopper's prefill kernel takes the call.
Arithmetic gpu_arithmetic(const Tensor& q, const Tensor& k, const Tensor& cu_seqlens_q,
                          std::int64_t fixed_split = 0);

/// "" when every element of out and lse is within its bound of the reference. The bounds follow
/// from float32 arithmetic and the dtype of out, with u the unit roundoff of float32, D the head
/// dim and n the number of KV tokens that the row sees:
///
///   a score s, a sum of D products:  e_s = (2 sqrt(D) + 8) u * (sum of |terms|)
///   p = exp(s - max) / sum:  relative error e_p = 2 e_s + (2 sqrt(n) + 16) u
///   out: e_p * (sum of p |v|), then rounded to its dtype
///   lse: e_s + (2 sqrt(n) + 16) u + 2 u |lse|
///
/// A sum of n rounded terms is off by about sqrt(n) u of the sum of |terms| (n u at worst); the
/// constants are for the roundings of scales, exp and the division. On a GPU these are added:
///
///   e_s: (D / 4 + 16) u * (sum of |terms|). Products of 16-bit numbers are exact; each group of 8
///        is added with its tail cut off, which is 2 u at most and always to the same side. The 16
///        are for s * log2(e) - max * log2(e), rounded twice, and for tanh by exp2.
///   e_p: (n / 4 + 24) u + 4 u |lse|: the same for the sum of P V; exp2.approx is right to 2 ulps;
///        splits are weighed by exp2 of the difference of two LSEs.
///   out: p_roundoff * (sum of p |v|) + p_smallest / 2 * (sum of |v|): P rounded to 16 bits, where
///        the largest p of a row (or split) is 1 before the division by the sum of the others. That
///        sum adds the numbers before they are rounded.
///   lse: 24 u + 2 u |lse|: log2.approx, and the change of base.
///
/// and where products are of fp8:
///
///   e_s: (D / 8 + 4) sum_unit * (sum of |terms|), e_p: (n / 8 + 4) sum_unit: of each 32 addends
///   and
///        the sum so far the tails are cut off, four times sum_unit of the sum of |terms| together.
std::string check_outputs(const Tensor& out, const Tensor& lse, const AttentionOptions& options,
                          const reference::AttentionResult& want, const std::string& label,
                          const Arithmetic& arithmetic = {});

/// Runs a batch over pages and packed (where it has no missing pages) and judges both against the
/// reference, and the memory around. "" when all is well.
std::string run_and_check(AttentionBatch& batch, const Execution& execution = {});

}  // namespace hpcattn::testkit
