// SPDX-License-Identifier: Apache-2.0
// From a checked problem to what the attention kernels are passed.
#pragma once

#include "hpcattn/plan.h"
#include "kernels/generic/attention/params.h"
#include "src/common/attention_problem.h"

namespace hpcattn::cuda {

/// Without pages.
inline bool is_packed(const AttentionProblem& problem) { return !problem.page_table.defined(); }

/// Each row of the last dim starts at a multiple of `bytes`.
bool rows_aligned(const Tensor& tensor, std::uintptr_t bytes);

/// KV tokens of a request, at most: what the host can know without reading lengths.
std::int64_t most_kv_tokens(const AttentionProblem& problem);

/// Room for the partial results of split rows.
struct PartialRoom {
  float* memory = nullptr;  // [rows, head_dim], then [rows]
  std::int64_t rows = 0;
};

/// Each call has a number of its own (AttentionParams::call_id).
AttentionParams attention_params(const AttentionProblem& problem, const AttentionGroup& group,
                                 const Tensor& plan, const PartialRoom& partials);

}  // namespace hpcattn::cuda
