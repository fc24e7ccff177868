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

/// What the rows of a token's step are.
inline int kind_of(const RopePairsParams& p, std::int32_t step) {
  return step < p.q_steps ? kQueryRow : step < p.q_steps + p.kv_steps ? kKeyRow : kValueRow;
}

/// Several rows are on their way at once, which registers have no room for: a lane copies its
/// pieces to memory of its own, and reads no other's.
class PairsStage {
 public:
  /// Steps `step` to end - 1 of a token. `shared`: [kStageRows][2][kPairsThreads] of 16 bytes.
  __device__ PairsStage(const RopePairsParams& p, const PairsUnit& unit, char* shared,
                        std::int32_t step, std::int32_t end)
      : p_(p), unit_(unit), shared_(shared), end_(end), copied_(step), taken_(step) {
    begin_kind(kind_of(p, step));
    head_ = first_head(step);
  }

  /// Begins to copy the next step's rows; of none past the last.
  __device__ void copy() {
    if (copied_ < end_) {
      const LanePieces pieces = pieces_here(unit_.pieces);
      const std::uint32_t to = ptx::shared_address(piece(copied_, 0));
      const bool live = copied_head_ < num_heads(copied_kind_) && pieces.live;
      ptx::cp_async_16(to, from_, live);
      ptx::cp_async_16(to + 16 * kPairsThreads, from_ + (pieces.second - pieces.first) * 2, live);
      ++copied_;
      copied_head_ += p_.num_teams();
      from_ += p_.inputs[copied_kind_].step_stride;
      if (copied_ == p_.q_steps) begin_kind(kKeyRow);
      if (copied_ == p_.q_steps + p_.kv_steps) begin_kind(kValueRow);
    }
    ptx::cp_async_commit();
  }

  /// The step whose rows are worked on.
  __device__ std::int32_t step() const { return taken_; }
  __device__ bool has_rows() const { return taken_ < end_; }
  __device__ void advance() {
    ++taken_;
    head_ += p_.num_teams();
    if (taken_ == p_.q_steps || taken_ == p_.q_steps + p_.kv_steps) head_ = team_here();
  }

  /// Its rows, of which the copies have come. A lane without elements has zeros.
  __device__ PairsRow rows() const {
    PairsRow row;
    const std::int32_t heads = num_heads(unit_.kind);
    row.live = head_ < heads && pieces_here(unit_.pieces).live;
    row.head = min(head_, heads - 1);
    HPCATTN_UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint4 words = *piece(taken_, i);
      row.in.words[4 * i] = words.x;
      row.in.words[4 * i + 1] = words.y;
      row.in.words[4 * i + 2] = words.z;
      row.in.words[4 * i + 3] = words.w;
    }
    return row;
  }

  /// Puts other words in the place of these.
  __device__ void put(const LaneWords& row) const {
    HPCATTN_UNROLL
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t* words = row.words + 4 * i;
      *piece(taken_, i) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }

  /// Element `at` of the lane's 16.
  template <DType kDType>
  __device__ float element(int at) const {
    const auto* codes = reinterpret_cast<const std::uint16_t*>(piece(taken_, at / 8));
    return decode<kDType>(std::uint32_t{codes[at % 8]});
  }

 private:
  __device__ int team_here() const { return (ptx::thread_index_here() & 31) >> p_.lanes_log2; }

  __device__ std::int32_t num_heads(int kind) const {
    return kind == kQueryRow ? p_.rope.num_q_heads : p_.rope.num_kv_heads;
  }

  /// The head of the lane's team in a step.
  __device__ std::int32_t first_head(std::int32_t step) const {
    const int kind = kind_of(p_, step);
    if (kind != kQueryRow) step -= p_.q_steps;
    if (kind == kValueRow) step -= p_.kv_steps;
    return step * p_.num_teams() + team_here();
  }

  /// The next step to be copied is of another kind.
  __device__ void begin_kind(int kind) {
    copied_kind_ = kind;
    copied_head_ = first_head(copied_);
    const PairsInput& input = p_.inputs[kind];
    from_ = input.data + std::int64_t{unit_.token} * input.token_stride +
            std::int64_t{copied_head_} * input.head_stride + pieces_here(unit_.pieces).first * 2;
  }

  __device__ uint4* piece(std::int32_t step, int i) const {
    return reinterpret_cast<uint4*>(shared_) + (2 * (step & (kStageRows - 1)) + i) * kPairsThreads +
           ptx::thread_index_here();
  }

  const RopePairsParams& p_;
  const PairsUnit& unit_;
  char* shared_;
  std::int32_t end_;
  // Of the next step to be copied, for the lane's team:
  std::int32_t copied_;
  std::int32_t copied_head_ = 0;
  int copied_kind_ = kQueryRow;
  const char* from_ = nullptr;  // its first piece
  // Of the step that is worked on:
  std::int32_t taken_;
  std::int32_t head_ = 0;
};

}  // namespace hpcattn
