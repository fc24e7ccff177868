// SPDX-License-Identifier: Apache-2.0
// The rows of a warp's unit on their way through shared memory.
#pragma once

#include <cstdint>

#include "kernels/fused/rope_pairs/lane.h"
#include "kernels/ptx/copy.h"
#include "kernels/ptx/thread.h"

namespace hpcattn {

/// What the rows of a step have in common.
struct PairsUnit {
  std::int32_t token = 0;
  int kind = -1;              // RopeRow of the step
  std::int32_t position = 0;  // that the lane's pairs follow
  PackedPieces pieces{};      // of the lane
  // Head 0 of the token, null where nothing is stored:
  char* in_cache = nullptr;
  char* in_output = nullptr;
};

/// The lane's pieces, taken apart where they are used: the coefficients take the registers.
inline LanePieces pieces_here(PackedPieces pieces) {
  return unpacked({ptx::word_here(pieces.word)});
}

template <RopePairsSpec kSpec>
inline void load_turns(const RopePairsParams& p, const PairsUnit& unit, PairTurns& turns) {
  load_turns<kSpec>(p.rope, p.rope.weights[unit.kind], table_row(p.rope, unit.position),
                    pieces_here(unit.pieces), turns);
}

/// A row of a team.
struct PairsRow {
  std::int32_t head;
  bool live;  // there is one, and the lane has elements of it
  LaneWords in;
  float factor = 1.0F;    // the norm's
  int range = kInRange;   // of its squares
  bool doubtful = false;  // float32 can not tell what this lane computes
};

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

  /// Element `at` of the lane's 16 of a step's row.
  template <DType kDType>
  __device__ float element(std::int32_t step, int at) const {
    const auto* codes = reinterpret_cast<const std::uint16_t*>(piece(step, at / 8));
    return decode<kDType>(std::uint32_t{codes[at % 8]});
  }

  /// Puts other words in the place of a step's row.
  __device__ void put(std::int32_t step, const LaneWords& row) const {
    HPCATTN_UNROLL
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t* words = row.words + 4 * i;
      *piece(step, i) = make_uint4(words[0], words[1], words[2], words[3]);
    }
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

  __device__ uint4* piece(std::int32_t step, int i) const {
    return reinterpret_cast<uint4*>(shared_) + (2 * (step & (kStageRows - 1)) + i) * kPairsThreads +
           ptx::thread_index_here();
  }

  const RopePairsParams& p_;
  const PairsUnit& unit_;
  char* shared_;
  std::int32_t end_;
};

}  // namespace hpcattn
