// SPDX-License-Identifier: Apache-2.0
// What a GPU's planner is given, and the memory that its threads share.
#pragma once

#include "src/plan/piece_cost.h"

namespace hpcattn::plan {

/// Threads of the planner's cta, at most.
inline constexpr int kMaxPlanThreads = 1024;

/// Lengths of this many requests are kept in shared memory; those of more are read where they lie.
inline constexpr int kCachedRequests = 1024;

/// Tasks of a plan, at most: 3 GiB of them.
inline constexpr std::int64_t kMaxDeviceTasks = std::int64_t{1} << 26;

/// The ctas of Hopper's prefill kernel, which has calls of many rows a request to itself: what they
/// cost, and how many they are, differs from the other kernels'.
struct PrefillCrew {
  std::int32_t more_rows_than = kMaxInt32;  // of a KV head, a request on average
  std::int32_t num_workers = 1;
  TileCosts costs;
};

struct BalanceInput {
  Lengths lengths;
  PlanShape shape;
  DeviceLayout layout;
  std::int32_t num_workers = 1;  // ctas that will claim the tasks
  PrefillCrew prefill;           // or those of the prefill kernel, where it computes
  std::int32_t* plan = nullptr;  // [layout.words], aligned to 16 bytes
  Header header;                 // of the group; the planner fills in the rest

  /// Whether the prefill kernel computes a batch of so many query tokens.
  constexpr bool is_prefill(std::int64_t num_tokens) const {
    return num_tokens * shape.group > std::int64_t{prefill.more_rows_than} * lengths.num_requests;
  }

  constexpr bool holds(std::int64_t num_tasks, std::int64_t num_combines,
                       std::int64_t partial_rows) const {
    return num_tasks <= kMaxDeviceTasks && partial_rows <= kMaxInt32 &&
           layout.holds(num_tasks, num_combines);
  }
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
/// Pieces of tiles of one KV head, and what those that are cut leave behind.
struct PieceSum {
  std::int64_t pieces = 0;
  std::int64_t rows = 0;       // of partials
  std::uint32_t combines = 0;  // no more than pieces, as those:
  std::uint32_t cut = 0;       // tiles
  friend constexpr PieceSum operator+(const PieceSum& a, const PieceSum& b) {
    return {a.pieces + b.pieces, a.rows + b.rows, a.combines + b.combines, a.cut + b.cut};
  }
};

/// Found once and read by all threads.
struct BalanceTotals {
  std::int64_t tiles;      // of one KV head
  std::int32_t pieces;     // of one KV head
  std::int32_t rows;       // of partials of one KV head
  std::int32_t combines;   // of one KV head
  std::int32_t num_tasks;  // of the plan
  std::int32_t num_combines;
  std::int32_t num_partial_rows;
  std::int32_t num_partials;
  std::uint32_t lengths_hash;
  CutRule rule;

  constexpr Header fill(Header header) const {
    header.num_tasks = num_tasks;
    header.num_combines = num_combines;
    header.num_partial_rows = num_partial_rows;
    header.num_partials = num_partials;
    header.lengths_hash[0] = lengths_hash;
    return header;
  }
};

/// Shared memory of the planner's cta: 25 KB.
struct BalanceMemory {
  std::int32_t cu_seqlens_q[kCachedRequests + 1];
  std::int32_t kv_lens[kCachedRequests];
  std::int32_t tile_begin[kCachedRequests + 1];  // row tiles of one KV head before each request
  // Sums over one KV head's tiles before those of each thread.
  std::int32_t pieces_before[kMaxPlanThreads];
  std::int32_t rows_before[kMaxPlanThreads];
  std::int32_t combines_before[kMaxPlanThreads];
  BalanceTotals totals;
};

}  // namespace hpcattn::plan
