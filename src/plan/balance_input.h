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
  std::int32_t combine = 0;  // of the item
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
  /// Past this, pieces are all alike: no plan has so many tasks.
  static constexpr std::int32_t kMostPieces = (1 << 30) - 1;

  std::int64_t cost = 0;
  std::uint32_t dearest = 0;  // of the tiles
  std::int32_t pieces = 0;
  friend constexpr WorkSum operator+(const WorkSum& a, const WorkSum& b) {
    return {a.cost + b.cost, std::max(a.dearest, b.dearest),
            std::min(a.pieces + b.pieces, kMostPieces)};
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

/// How the tiles of a balanced plan are dealt to the workers.
enum class Deal : std::int32_t {
  kShares,   // equal shares of the cost; a tile is cut where a share ends
  kEven,     // few short tiles: each in even pieces, a piece a worker
  kUniform,  // tiles that cost the same: the same number of whole tiles, or of pieces of each
};

/// Found once and read by all threads.
struct BalanceTotals {
  /// A uniform deal may be dearer than equal shares by this part: it spares their cuts.
  static constexpr std::int64_t kUniformSlack = 16;

  std::int64_t tiles;      // of one KV head
  std::int64_t cost;       // of one KV head
  std::int64_t share;      // cost of a worker's share
  std::int32_t pieces;     // of one KV head, where tiles are cut in even or fixed pieces
  std::int32_t rows;       // of partials of one KV head, then
  std::int32_t combines;   // of one KV head, then
  std::int32_t num_tasks;  // of the plan
  std::int32_t num_combines;
  std::int32_t num_partial_rows;
  std::uint32_t lengths_hash;
  Deal deal;
  // Uniform: whole tiles a worker, or workers a tile; the other is 1.
  std::int32_t tiles_each;
  std::int32_t workers_each;

  /// Says how the batch is dealt, from the work of one KV head.
  constexpr void set_work(const PlanShape& shape, std::int32_t num_workers, const WorkSum& work) {
    cost = work.cost;
    pieces = work.pieces;
    share = ceil_div(cost * shape.num_kv_heads, std::int64_t{num_workers});
    if (shape.fixed_split > 0) return;
    share = std::max(share, shape.costs.min_share());
    const auto items = static_cast<std::int32_t>(tiles) * shape.num_kv_heads;
    tiles_each = divide(items + num_workers - 1, num_workers);
    workers_each = std::max(divide(num_workers, items), 1);
    const std::int64_t uniform_share =
        ceil_div(std::int64_t{work.dearest} * tiles_each, std::int64_t{workers_each});
    const bool all_alike = cost == tiles * work.dearest;
    deal = Deal::kShares;
    if (std::int64_t{pieces} * shape.num_kv_heads <= num_workers) {
      deal = Deal::kEven;
    } else if (all_alike && uniform_share >= shape.costs.min_share() &&
               uniform_share <= share + share / kUniformSlack) {
      deal = Deal::kUniform;
    }
  }

  constexpr Header fill(Header header, std::int32_t num_kv_heads) const {
    header.num_tasks = num_tasks;
    header.num_combines = num_combines;
    header.num_partial_rows = num_partial_rows;
    // A tile that no combine names has one task, which is no partial.
    const std::int64_t whole = tiles * num_kv_heads - num_combines;
    header.num_partials = num_tasks == 0 ? 0 : num_tasks - static_cast<std::int32_t>(whole);
    header.lengths_hash[0] = lengths_hash;
    return header;
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
