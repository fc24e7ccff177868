// SPDX-License-Identifier: Apache-2.0
// K and V tiles on their way from pages to the slots of the ring.
#pragma once

#include <cstdint>

#include "kernels/generic/attention/config.h"
#include "kernels/generic/attention/params.h"
#include "kernels/ptx/copy.h"
#include "kernels/ptx/thread.h"
#include "kernels/tile/unroll.h"

namespace hpcattn {

/// What the threads of a cta have in common in a task; in shared memory, since the mainloop has no
/// registers for it.
struct TaskState {
  const char* k;
  const char* v;
  const std::int32_t* table;  // the request's row; null: packed
  std::int32_t kv_begin;
  std::int32_t kv_end;
  std::int32_t request;
  std::int32_t task_index;
  std::int32_t plain_begin;  // what all rows see: [plain_begin, plain_end)
  std::int32_t plain_end;
  std::int32_t last_arrived;  // this cta's partial was the last of its combine

  template <int kKvBytes>
  static TaskState of(const AttentionParams& p, const plan::Task& task, int task_index) {
    TaskState state{static_cast<const char*>(p.k) + task.kv_head * p.k_head * kKvBytes,
                    static_cast<const char*>(p.v) + task.kv_head * p.v_head * kKvBytes,
                    nullptr,
                    task.kv_begin,
                    task.kv_end,
                    task.request,
                    task_index,
                    0,
                    0,
                    0};
    if (p.page_table != nullptr) {
      state.table = p.page_table + task.request * p.table_request;
    } else {
      const std::int64_t first = p.cu_seqlens_k[task.request * p.cu_k_stride];
      state.k += first * p.k_token * kKvBytes;
      state.v += first * p.v_token * kKvBytes;
    }
    return state;
  }
};

/// One thread's part. Few threads copy a token's row, so that each looks few page ids up: eight
/// where reading is what counts (a warp then reads 128 bytes in a piece), four where registers are
/// (3.75 to 3.90 TB/s for 64x4K decode, and 318 to 307 TFLOP/s for a prefill of 8192 with eight;
/// H200, 2026-11-30); not with fp8, whose rows are half as long (244 to 303 us for 64x4K).
template <AttentionSpec kSpec, TaskShape kShape>
class KvLoader {
  using Config = AttentionConfig<kSpec>;
  static constexpr int kThreadsPerRow = kShape.kv_warps > 1 && Config::kKvBytes == 2 ? 8 : 4;
  static constexpr int kRowsPerPass = kAttentionThreads / kThreadsPerRow;
  static constexpr int kPasses = kShape.tile_kv / kRowsPerPass;
  static constexpr int kRowChunks = Config::kHeadDim * Config::kKvBytes / 16;

 public:
  /// `state` and `pages` lie in shared memory; pages [kMaxSlots][tile_kv]: of the tokens of the
  /// tiles in the ring, below 0 for none.
  KvLoader(const AttentionParams& params, const TaskState& state, std::int32_t* pages, int thread)
      : p_(params), state_(state), pages_(pages), thread_(thread) {}

  /// Page ids of a tile, one step ahead of their use.
  void look_up(int tile) {
    const std::int32_t* const table = state_.table;
    HPCATTN_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      const int token = tile * kShape.tile_kv + row_of(pass);
      next_page_[pass] = 0;
      if (table != nullptr && in_range(token)) {
        next_page_[pass] = table[p_.page_size.divide(token) * p_.table_page];
      }
    }
  }

  /// Starts the copy of K of the tile that was looked up, and looks the next one up.
  void load_k(int tile, std::uint32_t slot) {
    std::int32_t page[kPasses];
    HPCATTN_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      page[pass] = checked_page(tile, pass);
      saw_hole_ = saw_hole_ || page[pass] < 0;
      if (first_chunk() == 0) *page_of(tile, pass) = page[pass];
    }
    look_up(tile + 1);
    load(tile, slot, state_.k, p_.k_page, p_.k_token, page);
  }

  /// The same tile's V.
  void load_v(int tile, std::uint32_t slot) {
    // Written by a thread of this warp, one barrier ago.
    std::int32_t page[kPasses];
    HPCATTN_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) page[pass] = *page_of(tile, pass);
    load(tile, slot, state_.v, p_.v_page, p_.v_token, page);
  }

  /// Whether this thread has met a token without a page.
  bool saw_hole() const { return saw_hole_; }

 private:
  /// What follows from it takes registers where it is kept, and instructions where it is read anew:
  /// with either way some variants have a word on the stack, and none with the one that it has
  /// here.
  static constexpr bool kThreadAnew = Config::kKvBytes == 1 && Config::kCompute == DType::kFloat16;
  int thread() const { return kThreadAnew ? ptx::thread_index_here() : thread_; }

  int row_of(int pass) const { return thread() / kThreadsPerRow + pass * kRowsPerPass; }
  int first_chunk() const { return thread() % kThreadsPerRow; }
  bool in_range(int token) const { return token >= state_.kv_begin && token < state_.kv_end; }

  std::int32_t* page_of(int tile, int pass) const {
    return pages_ + tile % Config::kMaxSlots * kShape.tile_kv + row_of(pass);
  }

  std::int32_t checked_page(int tile, int pass) {
    std::int32_t page = next_page_[pass];
    if constexpr (kSpec.checked) {
      if (state_.table != nullptr && (page < -1 || page >= p_.num_pages)) {
        const int token = tile * kShape.tile_kv + row_of(pass);
        report_fault(p_.fault, FaultKind::kPageId, state_.request, p_.page_size.divide(token), page,
                     p_.num_pages);
        page = -1;
      }
    }
    return page;
  }

  void load(int tile, std::uint32_t slot, const char* base, std::int64_t page_stride,
            std::int64_t token_stride, const std::int32_t (&page)[kPasses]) const {
    HPCATTN_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = row_of(pass);
      const int token = tile * kShape.tile_kv + row;
      // What no row sees may hold anything: it becomes zeros, which times 0 are 0.
      const bool live = in_range(token) && page[pass] >= 0;
      const int place = token - p_.page_size.divide(token) * static_cast<int>(p_.page_size.divisor);
      const std::int64_t element = page[pass] * page_stride + place * token_stride;
      const char* source = live ? base + element * Config::kKvBytes : base;
      const std::uint32_t target = slot + row * Config::kKvStride;
      const auto copy_part = [&](int i) {
        const int chunk = first_chunk() + i * kThreadsPerRow;
        if (kRowChunks % kThreadsPerRow != 0 && chunk >= kRowChunks) return;
        copy_chunk(target + chunk * 16, source + chunk * 16, live);
      };
      constexpr int kParts = (kRowChunks + kThreadsPerRow - 1) / kThreadsPerRow;
      if constexpr (kSpec.unaligned_kv) {
        // Element by element it is slow anyway, and long: the compiler takes twice as long for it.
        HPCATTN_NO_UNROLL
        for (int i = 0; i < kParts; ++i) copy_part(i);
      } else {
        HPCATTN_UNROLL
        for (int i = 0; i < kParts; ++i) copy_part(i);
      }
    }
  }

  static void copy_chunk(std::uint32_t target, const char* source, bool live) {
    if constexpr (!kSpec.unaligned_kv) {
      ptx::cp_async_16(target, source, live);
    } else {
      auto* bytes = static_cast<char*>(__cvta_shared_to_generic(target));
      HPCATTN_NO_UNROLL
      for (int i = 0; i < 16; i += Config::kKvBytes) {
        if constexpr (Config::kKvBytes == 1) {
          bytes[i] = live ? source[i] : 0;
        } else {
          *reinterpret_cast<short*>(bytes + i) =
              live ? *reinterpret_cast<const short*>(source + i) : 0;
        }
      }
    }
  }

  const AttentionParams& p_;
  const TaskState& state_;
  std::int32_t* pages_;
  int thread_;
  std::int32_t next_page_[kPasses] = {};
  bool saw_hole_ = false;
};

}  // namespace hpcattn
