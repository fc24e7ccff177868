// SPDX-License-Identifier: Apache-2.0
// The rows of a warp's unit on their way through shared memory.
#pragma once

#include <cstdint>

#include "kernels/fused/rope_pairs/row.h"
#include "kernels/ptx/copy.h"

namespace hpcattn {

/// Of a token's rows, those that the teams of a warp take at once.
struct PairsStep {
  int kind;            // RopeRow
  std::int32_t first;  // head of the first team
};

inline PairsStep step_of(const RopePairsParams& p, std::int32_t step) {
  const std::int32_t teams = p.num_teams();
  if (step < p.q_steps) return {kQueryRow, step * teams};
  step -= p.q_steps;
  if (step < p.kv_steps) return {kKeyRow, step * teams};
  return {kValueRow, (step - p.kv_steps) * teams};
}

/// Several rows are on their way at once, which registers have no room for: a lane copies its
/// pieces to memory of its own, and reads no other's.
class PairsStage {
 public:
  /// Steps up to `end` of a token. `shared`: [kStageRows][2][kPairsThreads] of 16 bytes.
  __device__ PairsStage(const RopePairsParams& p, const PairsUnit& unit, char* shared,
                        std::int32_t end)
      : p_(p), unit_(unit), shared_(shared), end_(end) {}

  /// Begins to copy a step's rows; of none past the last.
  __device__ void copy(std::int32_t step) const {
    if (step < end_) {
      const auto [kind, first] = step_of(p_, step);
      const PairsInput& input = p_.inputs[kind];
      const LanePieces pieces = pieces_here(unit_.pieces);
      const std::int32_t head = first + team_here();
      const bool live = is_live(kind, head) && pieces.live;
      const char* from = input.data + std::int64_t{unit_.token} * input.token_stride +
                         std::int64_t{head} * input.head_stride;
      const std::uint32_t to = ptx::shared_address(piece(step, 0));
      ptx::cp_async_16(to, from + pieces.first * 2, live);
      ptx::cp_async_16(to + 16 * kPairsThreads, from + pieces.second * 2, live);
    }
    ptx::cp_async_commit();
  }

  /// A step's rows, of which the copies have come. A lane without elements has zeros.
  __device__ PairsRow rows(std::int32_t step) const {
    const auto [kind, first] = step_of(p_, step);
    PairsRow row;
    row.head = first + team_here();
    row.live = is_live(kind, row.head);
    if (!row.live) row.head = first;
    row.live &= pieces_here(unit_.pieces).live;
    HPCATTN_UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint4 words = *piece(step, i);
      row.in.words[4 * i] = words.x;
      row.in.words[4 * i + 1] = words.y;
      row.in.words[4 * i + 2] = words.z;
      row.in.words[4 * i + 3] = words.w;
    }
    return row;
  }

 private:
  __device__ int team_here() const { return (ptx::thread_index_here() & 31) >> p_.lanes_log2; }

  __device__ bool is_live(int kind, std::int32_t head) const {
    return head < (kind == kQueryRow ? p_.rope.num_q_heads : p_.rope.num_kv_heads);
  }

  __device__ const uint4* piece(std::int32_t step, int i) const {
    return reinterpret_cast<const uint4*>(shared_) +
           (2 * (step & (kStageRows - 1)) + i) * kPairsThreads + ptx::thread_index_here();
  }

  const RopePairsParams& p_;
  const PairsUnit& unit_;
  char* shared_;
  std::int32_t end_;
};

}  // namespace hpcattn
