// SPDX-License-Identifier: Apache-2.0
#include "src/plan/split.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace hpcattn::plan {
namespace {

// A worker gets about this many tasks where splitting is up to us: enough that the last ones to end
// lie close together, few enough that combining costs nothing.
constexpr std::int64_t kTasksPerWorker = 8;

// No split is shorter than this: below, starting a task costs as much as it saves.
constexpr std::int64_t kMinSplit = 512;

// Reading a KV token costs as much as computing it for this many rows.
constexpr std::int64_t kRowsPerRead = 8;

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Calls visit(request, row_begin, row_end, kv range) for each tile of rows of one KV head, until
/// it returns false.
template <typename Visit>
void for_each_tile(const SplitInput& in, const Visit& visit) {
  for (std::size_t request = 0; request < in.kv_lens.size(); ++request) {
    const std::int64_t num_tokens = in.cu_seqlens_q[request + 1] - in.cu_seqlens_q[request];
    const std::int64_t kv_len = in.kv_lens[request];
    const std::int64_t num_rows = num_tokens * in.group;
    for (std::int64_t row = 0; row < num_rows; row += kTileRows) {
      const std::int64_t row_end = std::min(row + kTileRows, num_rows);
      const std::int64_t before = kv_len - num_tokens;
      const KvRange kv = visible_to_any(in.mask, before + row / in.group,
                                        before + (row_end - 1) / in.group, kv_len);
      if (!visit(static_cast<std::int32_t>(request), row, row_end, kv)) return;
    }
  }
}

std::int64_t cost_of(std::int64_t rows, std::int64_t kv_tokens) {
  return std::max(rows, kRowsPerRead) * kv_tokens;
}

/// How one tile is cut: KV heads of a task, and KV tokens of a split.
struct Cut {
  std::int64_t heads = 1;
  std::int64_t step = 1;
};

Cut cut_tile(const SplitInput& in, std::int64_t rows, KvRange kv, std::int64_t target) {
  const std::int64_t length = kv.end - kv.begin;
  Cut cut{.heads = rows <= kNarrowRows ? std::min(in.num_kv_heads, kTileRows / rows) : 1,
          .step = std::max<std::int64_t>(length, 1)};
  if (in.fixed_split > 0) {
    cut.step = in.fixed_split;
    return cut;
  }
  // Cut along the KV first, since whole tokens are read best; then along the heads.
  const std::int64_t wanted = ceil_div(cost_of(rows, length) * cut.heads, target);
  const std::int64_t splits =
      std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(length / kMinSplit, 1));
  if (splits > 1) cut.step = ceil_div(ceil_div(length, splits), kTileKv) * kTileKv;
  cut.heads = ceil_div(cut.heads, std::max<std::int64_t>(ceil_div(wanted, splits), 1));
  return cut;
}

/// One tile of rows and how it is cut.
struct TileCut {
  std::int32_t request = 0;
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  KvRange kv;
  std::int64_t heads = 1;      // KV heads of a task
  std::int64_t step = 1;       // KV tokens of a split ..
  std::int64_t first_end = 0;  // .. the first one ends here
  std::int64_t num_splits = 1;
};

/// The cost of all tiles that one of the `wanted` tasks should have.
std::int64_t target_cost(const SplitInput& in) {
  double total = 0.0;  // of lengths near 2^31 it is past 2^63
  for_each_tile(in, [&](std::int32_t, std::int64_t begin, std::int64_t end, KvRange kv) {
    total += static_cast<double>(cost_of(end - begin, kv.end - kv.begin)) *
             static_cast<double>(in.num_kv_heads);
    return true;
  });
  const std::int64_t wanted = in.num_workers <= 1 ? 1 : in.num_workers * kTasksPerWorker;
  constexpr double kLargest = 0x1p62;
  return static_cast<std::int64_t>(
      std::clamp(std::floor(total / static_cast<double>(wanted)), 1.0, kLargest));
}

/// Calls visit(TileCut) for each tile, until it returns false.
template <typename Visit>
void for_each_cut(const SplitInput& in, const Visit& visit) {
  const std::int64_t target = target_cost(in);
  for_each_tile(in, [&](std::int32_t request, std::int64_t row, std::int64_t row_end, KvRange kv) {
    const auto [heads, step] = cut_tile(in, row_end - row, kv, target);
    // Splits end at multiples of the step where it is fixed, so that a request's bits do not depend
    // on how far its own window has moved.
    const std::int64_t first_end =
        in.fixed_split > 0 ? (kv.begin / step + 1) * step : kv.begin + step;
    const std::int64_t splits = kv.end <= first_end ? 1 : 1 + ceil_div(kv.end - first_end, step);
    return visit(TileCut{.request = request,
                         .row_begin = row,
                         .row_end = row_end,
                         .kv = kv,
                         .heads = heads,
                         .step = step,
                         .first_end = first_end,
                         .num_splits = splits});
  });
}

}  // namespace

std::int64_t cost(const Task& task) {
  return cost_of(task.row_end - task.row_begin, task.kv_end - task.kv_begin) * task.num_heads;
}

SplitCount count_split(const SplitInput& in) {
  SplitCount count;
  for_each_cut(in, [&](const TileCut& cut) {
    const std::int64_t tasks_of_heads = ceil_div(in.num_kv_heads, cut.heads);
    count.tasks += cut.num_splits * tasks_of_heads;
    count.combines += cut.num_splits > 1 ? tasks_of_heads : 0;
    return count.tasks <= kMaxTasks;
  });
  return count;
}

SplitResult split(const SplitInput& in) {
  SplitResult result;
  for_each_cut(in, [&](const TileCut& cut) {
    const std::int64_t rows = cut.row_end - cut.row_begin;
    for (std::int64_t head = 0; head < in.num_kv_heads; head += cut.heads) {
      const std::int64_t num_heads = std::min(cut.heads, in.num_kv_heads - head);
      Task task{.request = cut.request,
                .kv_head = static_cast<std::int32_t>(head),
                .num_heads = static_cast<std::int32_t>(num_heads),
                .row_begin = static_cast<std::int32_t>(cut.row_begin),
                .row_end = static_cast<std::int32_t>(cut.row_end)};
      if (cut.num_splits > 1) {
        result.combines.push_back({.request = task.request,
                                   .kv_head = task.kv_head,
                                   .num_heads = task.num_heads,
                                   .row_begin = task.row_begin,
                                   .row_end = task.row_end,
                                   .partial = static_cast<std::int32_t>(result.num_partial_rows),
                                   .num_splits = static_cast<std::int32_t>(cut.num_splits)});
      }
      std::int64_t begin = cut.kv.begin;
      for (std::int64_t i = 0; i < cut.num_splits; ++i) {
        const std::int64_t end = std::min(cut.first_end + i * cut.step, cut.kv.end);
        task.kv_begin = static_cast<std::int32_t>(begin);
        task.kv_end = static_cast<std::int32_t>(end);
        if (cut.num_splits > 1) {
          task.partial = static_cast<std::int32_t>(result.num_partial_rows);
          result.num_partial_rows += rows * num_heads;
          ++result.num_partials;
        }
        result.tasks.push_back(task);
        begin = end;
      }
    }
    return true;
  });
  const auto place = [](const Task& task) {
    return std::make_tuple(-cost(task), task.request, task.row_begin, task.kv_head, task.kv_begin);
  };
  std::sort(result.tasks.begin(), result.tasks.end(),
            [&](const Task& a, const Task& b) { return place(a) < place(b); });
  return result;
}

SplitBound split_bound(std::int64_t num_requests, std::int64_t num_tokens,
                       std::int64_t num_kv_heads, std::int64_t group, std::int64_t num_workers,
                       std::int64_t fixed_split, std::int64_t max_kv_len) {
  const std::int64_t tiles =
      (num_tokens * group / kTileRows + std::min(num_requests, num_tokens)) * num_kv_heads;
  if (fixed_split > 0) return {tiles * (max_kv_len / fixed_split + 1), tiles};
  // A tile is cut into splits times head groups <= 2 * cost / target + 1 tasks, and the costs add
  // up to workers * kTasksPerWorker targets, or less than twice that where the target was rounded
  // down.
  const std::int64_t extra = num_workers <= 1 ? 0 : 4 * num_workers * kTasksPerWorker;
  return {tiles + extra, std::min(tiles, extra)};
}

}  // namespace hpcattn::plan
