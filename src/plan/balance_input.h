// SPDX-License-Identifier: Apache-2.0
// What a GPU's planner is given, and the memory that its threads share.
#pragma once

#include "src/plan/kv_cut.h"

namespace hpcattn::plan {

/// Threads of the planner's cta, at most.
inline constexpr int kMaxPlanThreads = 1024;

/// Workers of a plan, at most: 256 multiprocessors.
inline constexpr int kMaxPlanWorkers = 512;

/// Lengths of this many requests are kept in shared memory; those of more are read where they lie.
inline constexpr int kCachedRequests = 1024;

/// Tasks of a plan, at most: 3 GiB of them.
inline constexpr std::int64_t kMaxDeviceTasks = std::int64_t{1} << 26;

struct BalanceInput {
  Lengths lengths;
  PlanShape shape;
  DeviceLayout layout;
  std::int32_t* plan = nullptr;  // [layout.words], aligned to 16 bytes
  Header header;                 // of the group; the planner fills in the rest

  constexpr bool holds(std::int64_t num_tasks, std::int64_t num_combines,
                       std::int64_t partial_rows) const {
    return num_tasks <= kMaxDeviceTasks && partial_rows <= kMaxInt32 &&
           layout.holds(num_tasks, num_combines);
  }
};

/// Where a worker's share begins.
struct Boundary {
  std::int32_t item = 0;     // a tile of a head: head * tiles of a head + tile
  std::int32_t kv = -1;      // the KV token there; -1: the item's start
  std::int32_t rows = 0;     // of the item, where it is cut here
  std::int32_t partial = 0;  // first row of the partial that begins here
  std::int32_t combine = 0;  // of the item, where this is its first cut
  constexpr bool cuts() const { return kv >= 0; }
};

/// Sums of a scan; {} is zero.
struct TileSum {
  std::int64_t tiles = 0;
  std::uint32_t hash = 0;
  std::uint32_t unused = 0;
  friend constexpr TileSum operator+(const TileSum& a, const TileSum& b) {
    return {a.tiles + b.tiles, a.hash + b.hash, 0};
  }
};
struct WorkSum {
  std::int64_t cost = 0;
  std::int64_t pieces = 0;
  friend constexpr WorkSum operator+(const WorkSum& a, const WorkSum& b) {
    return {a.cost + b.cost, a.pieces + b.pieces};
  }
};
struct PartialSum {
  std::int64_t rows = 0;
  std::int64_t combines = 0;
  friend constexpr PartialSum operator+(const PartialSum& a, const PartialSum& b) {
    return {a.rows + b.rows, a.combines + b.combines};
  }
};
struct CutSum {
  std::int32_t cuts = 0;
  std::int32_t rows = 0;
  std::int32_t combines = 0;
  friend constexpr CutSum operator+(const CutSum& a, const CutSum& b) {
    return {a.cuts + b.cuts, a.rows + b.rows, a.combines + b.combines};
  }
};

/// Found once and read by all threads.
struct BalanceTotals {
  std::int64_t tiles;      // of one KV head
  std::int64_t cost;       // of one KV head
  std::int64_t share;      // cost of a worker's share
  std::int64_t pieces;     // of one KV head, where tiles are cut in even or fixed pieces
  std::int32_t rows;       // of partials of one KV head, then
  std::int32_t combines;   // of one KV head, then
  std::int32_t num_tasks;  // of the plan
  std::int32_t num_combines;
  std::int32_t num_partial_rows;
  std::uint32_t lengths_hash;
  bool even;  // pieces are few enough for a worker each

  /// Says how the batch is cut, from the work of one KV head.
  constexpr void set_work(const PlanShape& shape, std::int32_t num_workers, const WorkSum& work) {
    cost = work.cost;
    pieces = work.pieces;
    share = ceil_div(cost * shape.num_kv_heads, std::int64_t{num_workers});
    if (shape.fixed_split == 0) share = std::max(share, shape.costs.min_share());
    even = pieces * shape.num_kv_heads <= num_workers;
  }
};

/// Shared memory of the planner's cta: 44 KB.
struct BalanceMemory {
  std::int32_t cu_seqlens_q[kCachedRequests + 1];
  std::int32_t kv_lens[kCachedRequests];
  std::int32_t tile_begin[kCachedRequests + 1];  // row tiles of one KV head before each request
  // Sums over one KV head's tiles before those of each thread.
  std::int64_t cost_before[kMaxPlanThreads];
  std::int32_t pieces_before[kMaxPlanThreads];
  std::int32_t rows_before[kMaxPlanThreads];
  std::int32_t combines_before[kMaxPlanThreads];
  Boundary boundary[kMaxPlanWorkers + 1];
  std::int32_t worker_begin[kMaxPlanWorkers + 1];
  BalanceTotals totals;
};

}  // namespace hpcattn::plan
