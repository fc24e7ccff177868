// SPDX-License-Identifier: Apache-2.0
// What one task of the plan hands to a kernel, in plain C types: the kernels are compiled once for
// each instruction set and share no inline function with the rest (cmake/IsaVariants.cmake says
// why).
#pragma once

#include <cstddef>
#include <cstdint>

namespace hpcattn::cpu {

/// Rows of a task, at most, and KV tokens of one step of the mainloop.
inline constexpr int kTileRows = 96;
inline constexpr int kTileKv = 64;
inline constexpr int kMaxHeadDim = 256;

/// Up to this many rows of a head a task takes the narrow kernel, whose lanes are the head dim.
inline constexpr int kNarrowRows = 24;

/// How K and V, and q, are stored.
enum class KvType : int { kFloat32, kFloat16, kBFloat16, kFloat8E4M3, kFloat8E5M2 };
inline constexpr int kNumKvTypes = 5;

/// K or V of the first KV head of a task: token j lies at
///   base + page_ids[j / page_size] * page_bytes + (j % page_size) * token_bytes    (paged)
///   base + j * token_bytes                                                         (packed)
struct KvSource {
  const std::byte* base = nullptr;
  std::int64_t page_bytes = 0;
  std::int64_t token_bytes = 0;
  std::int64_t head_bytes = 0;  // from one KV head to the next
};

/// Memory of one thread. Aligned to 64 bytes.
struct Scratch {
  alignas(64) float q[kTileRows * kMaxHeadDim];             // [row][dim], scaled
  alignas(64) float q_transposed[kMaxHeadDim * kTileRows];  // [dim][row], for the wide kernel
  alignas(64) float o[kTileRows * kMaxHeadDim];             // [row][dim], not normalised
  alignas(64) float p[kTileKv * kTileRows];                 // scores, then probabilities
  alignas(64) float k_rows[kTileKv * kMaxHeadDim];          // narrow formats as float32, a tile
  alignas(64) float v_rows[kTileKv * kMaxHeadDim];
  // One entry for each row of all heads. Entries past the task's rows are set by the kernel.
  alignas(64) float row_max[kTileRows];  // of scores in units of log2(e)
  alignas(64) float row_sum[kTileRows];
  alignas(64) float rescale[kTileRows];
  alignas(64) float slope[kTileRows];             // ALiBi, in units of log2(e)
  alignas(64) std::int32_t position[kTileRows];   // of the row's query token
  alignas(64) std::int32_t see_begin[kTileRows];  // KV tokens that the row sees
  alignas(64) std::int32_t see_end[kTileRows];
};

struct TaskInput {
  int rows = 0;       // of each head
  int num_heads = 1;  // KV heads; rows of all of them lie one after the other in Scratch
  int head_dim = 0;
  KvSource k;
  KvSource v;
  const std::int32_t* page_ids = nullptr;  // null: packed
  std::int64_t page_id_stride = 1;
  std::int64_t page_size = 0;
  std::int64_t kv_begin = 0;
  std::int64_t kv_end = 0;
  float softcap = 0.0F;  // 0: none; q is then scaled so that scores are logits / softcap
  bool alibi = false;
};

/// Fills scratch.o, row_max and row_sum from scratch.q, position, see_begin, see_end and slope.
using AttendFunction = void (*)(const TaskInput&, Scratch&);

/// to[i] = factor * row[i].
using LoadRowFunction = void (*)(const std::byte* row, int length, float factor, float* to);

/// row[i] = factor * from[i], rounded to nearest even.
using StoreRowFunction = void (*)(const float* from, int length, float factor, std::byte* row);

/// The kernels of one instruction set. Rows of q and out are multiples of 16 long.
struct KernelTable {
  const char* isa = nullptr;
  LoadRowFunction load_row[kNumKvTypes] = {};
  StoreRowFunction store_row[kNumKvTypes] = {};  // null: one number at a time will do
  AttendFunction narrow[kNumKvTypes] = {};
  AttendFunction wide[kNumKvTypes] = {};
};

}  // namespace hpcattn::cpu
