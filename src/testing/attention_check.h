// SPDX-License-Identifier: Apache-2.0
// Judging the outputs of an attention call.
#pragma once

#include <string>

#include "src/cpu/reference/attention.h"
#include "src/testing/attention_case.h"

namespace hpcattn::testkit {

/// "" when every element of out and lse is within its bound of the reference. The bounds follow
/// from float32 arithmetic and the dtype of out:
///
///   a score s, a sum of head_dim products:  e_s = (2 sqrt(head_dim) + 8) u * (sum of |terms|)
///   p = exp(s - max) / sum:  relative error e_p = 2 e_s + (2 sqrt(num_visible) + 16) u
///   out: e_p * (sum of p |v|), then rounded to its dtype
///   lse: e_s + (2 sqrt(num_visible) + 16) u + 2 u |lse|
///
/// with u the unit roundoff of float32. A sum of n rounded terms is off by about sqrt(n) u of the
/// sum of |terms| (n u at worst); the constants are for the roundings of scales, exp and the
/// division.
std::string check_outputs(const Tensor& out, const Tensor& lse, const AttentionOptions& options,
                          const reference::AttentionResult& want, const std::string& label);

/// Runs a batch over pages and packed (where it has no missing pages) and judges both against the
/// reference, and the memory around. "" when all is well.
std::string run_and_check(AttentionBatch& batch, const Execution& execution = {});

}  // namespace hpcattn::testkit
