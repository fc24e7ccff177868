// SPDX-License-Identifier: Apache-2.0
// What a plan tensor holds, as int32 words: a header, the tasks, the combines. Plain structs, so
// that the host and device code read the same layout.
#pragma once

#include <cstdint>

namespace hpcattn::plan {

inline constexpr std::int32_t kMagic = 0x48504c4e;  // "HPLN"
inline constexpr std::int32_t kVersion = 4;

/// Rows (query tokens x heads of a group) of one task, at most. A row is numbered
/// token * group + head_in_group within its request.
inline constexpr std::int64_t kTileRows = 96;

/// KV tokens of one step of a kernel's mainloop; split boundaries are multiples of it.
inline constexpr std::int64_t kTileKv = 64;

/// Up to this many rows of a KV head are computed with the head dim along the lanes, and some KV
/// heads are then taken by one task: it reads whole tokens of a page, as they lie.
inline constexpr std::int64_t kNarrowRows = 24;

/// A share of the work: some rows of each of some KV heads of a request, over a KV range. 64 bytes:
/// a GPU's thread reads it in four loads.
struct Task {
  std::int32_t request = 0;
  std::int32_t kv_head = 0;  // the first of num_heads
  std::int32_t num_heads = 1;
  std::int32_t row_begin = 0;
  std::int32_t row_end = 0;
  std::int32_t kv_begin = 0;
  std::int32_t kv_end = 0;
  std::int32_t partial =
      -1;  // first row of its partial result, heads one after the other; -1: whole
  // What a GPU's kernel would else look up in three other places before it could start.
  std::int32_t first_token = 0;  // of the request, cu_seqlens_q[request]
  std::int32_t num_tokens = 0;   // query tokens of the request
  std::int32_t kv_len = 0;       // of the request
  std::int32_t combine = -1;     // that a partial result belongs to (GPU)
  std::int32_t unused[4] = {};
};

/// Rows whose KV range was split: their partials lie one after the other, in the order of the KV.
/// On a GPU many are joined in two steps: some combines make partials, each in the place of its
/// first, which another combine joins.
struct Combine {
  std::int32_t request = 0;
  std::int32_t kv_head = 0;
  std::int32_t num_heads = 1;
  std::int32_t row_begin = 0;
  std::int32_t row_end = 0;
  std::int32_t partial = 0;  // first row of the first partial
  std::int32_t num_splits = 0;
  std::int32_t first_token = 0;  // of the request (GPU)
  // Partial results that have arrived: how many, and the sum of the calls that they are of; 0
  // between calls (GPU).
  std::uint32_t arrived[2] = {};
  std::int32_t stride = 0;  // rows from one partial to the next (GPU)
  std::int32_t next = -1;   // combine that joins this one's result; -1: it is the rows' own (GPU)
};

struct Header {
  std::int32_t magic = kMagic;
  std::int32_t version = kVersion;
  std::int32_t num_requests = 0;
  std::int32_t num_tokens = 0;
  std::int32_t num_tasks = 0;
  std::int32_t num_combines = 0;
  std::int32_t num_partial_rows = 0;
  std::int32_t num_partials = 0;
  // The attention group.
  std::int32_t num_q_heads = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t page_size = 0;
  std::int32_t q_dtype = 0;
  std::int32_t kv_dtype = 0;
  std::int32_t causal = 0;
  std::int32_t window = 0;  // 0: none
  // KV tokens of a split, where they are fixed: this sizes the partial results.
  std::int32_t fixed_split = 0;
  std::int32_t unused = 0;
  // Tasks that ctas have claimed after their first: how many, and the sum of the calls that they
  // are of; 0 between calls (GPU).
  std::uint32_t claimed[2] = {};
  // What the plan was made from, and whether it is still whole.
  std::uint32_t lengths_hash[2] = {};
  std::uint32_t content_hash[2] = {};
};

inline constexpr std::int64_t kHeaderWords = sizeof(Header) / 4;
inline constexpr std::int64_t kTaskWords = sizeof(Task) / 4;
inline constexpr std::int64_t kCombineWords = sizeof(Combine) / 4;

}  // namespace hpcattn::plan
