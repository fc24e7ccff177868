// SPDX-License-Identifier: Apache-2.0
// Cutting a batch into tasks: rows into tiles, and the KV range of long tiles into splits, so that
// all workers are busy to the end. Pure functions of the lengths.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/plan/layout.h"
#include "src/plan/rows.h"

namespace hpcattn::plan {

struct SplitInput {
  std::span<const std::int32_t> cu_seqlens_q;  // [num_requests + 1]
  std::span<const std::int32_t> kv_lens;       // [num_requests]
  std::int64_t num_kv_heads = 1;
  std::int64_t group = 1;
  Mask mask;
  std::int64_t num_workers = 1;
  std::int64_t fixed_split = 0;
};

struct SplitResult {
  std::vector<Task> tasks;  // dearest first
  std::vector<Combine> combines;
  std::int64_t num_partial_rows = 0;
  std::int64_t num_partials = 0;
};

/// How many tasks and combines split() makes, without making them. Stops counting past kMaxTasks.
struct SplitCount {
  std::int64_t tasks = 0;
  std::int64_t combines = 0;
};
inline constexpr std::int64_t kMaxTasks = std::int64_t{1} << 26;  // 2 GiB of them
SplitCount count_split(const SplitInput& in);

/// Pairs of (row, KV token) that a task computes, a few rows counting as more: its reads bound it
/// then.
std::int64_t cost(const Task& task);

SplitResult split(const SplitInput& in);

/// An upper bound of the tasks and of the combines that split() makes.
struct SplitBound {
  std::int64_t tasks = 0;
  std::int64_t combines = 0;
};
SplitBound split_bound(std::int64_t num_requests, std::int64_t num_tokens,
                       std::int64_t num_kv_heads, std::int64_t group, std::int64_t num_workers,
                       std::int64_t fixed_split, std::int64_t max_kv_len);

}  // namespace hpcattn::plan
