// SPDX-License-Identifier: Apache-2.0
// The rows of a warp's unit on their way through shared memory.
#pragma once

#include <cstdint>

#include "kernels/fused/rope_pairs/lane.h"
#include "kernels/ptx/copy.h"
#include "kernels/ptx/thread.h"

namespace hpcattn {

/// Which of a row's lanes this is, and its pieces: computed where they are seldom used, for the
/// coefficients take the registers.
template <RopePairsSpec kSpec>
inline int lane_of_row() {
  return ptx::thread_index_here() & (kSpec.lanes - 1);
}
template <RopePairsSpec kSpec>
inline LanePieces pieces_here(const RopePairsParams& p) {
  return pieces_of<kSpec.interleaved>(p.rope, lane_of_row<kSpec>());
}

inline std::int32_t num_heads(const RopePairsParams& p, int kind) {
  return kind == kQueryRow ? p.rope.num_q_heads : p.rope.num_kv_heads;
}

/// A step: the kind of its rows (RopeRow), and the token and the head that the warp's first team
/// takes.
struct PairsStep {
  std::int32_t token;
  std::int32_t head;
  int kind;
};

/// The token of this lane's team in a step; it may lie past the last.
template <RopePairsSpec kSpec>
inline std::int32_t token_here(const RopePairsParams& p, const PairsStep& step) {
  const int team = (ptx::thread_index_here() & 31) / kSpec.lanes;
  return step.token + (team >> p.step_heads_log2);
}

/// Step `index` of all.
inline PairsStep pairs_step(const RopePairsParams& p, std::int32_t index) {
  const std::int32_t group = p.steps_per_group.divide(index);
  PairsStep step{.token = group * p.group_tokens};
  index -= group * p.num_steps();
  step.kind = index < p.q_steps ? kQueryRow : index < p.q_steps + p.kv_steps ? kKeyRow : kValueRow;
  if (step.kind != kQueryRow) index -= p.q_steps;
  if (step.kind == kValueRow) index -= p.kv_steps;
  step.head = index * p.step_heads;
  return step;
}

/// To the first step of the next kind.
inline void to_next_kind(const RopePairsParams& p, PairsStep& step) {
  step.head = 0;
  if (++step.kind > kValueRow) {
    step.kind = kQueryRow;
    step.token += p.group_tokens;
  }
}

/// What a lane has found of its token: in shared memory, for it is seldom looked at.
struct alignas(16) TokenNotes {
  TokenPlace::Kind kind;
  std::int32_t position;  // that the lane's pairs follow
  std::int32_t page;      // of the cache; -1: nothing is stored
  std::int32_t place;     // in it
};

/// Several rows are on their way at once, which registers have no room for: a lane copies its
/// pieces to memory of its own, and reads no other's.
template <RopePairsSpec kSpec>
class PairsStage {
 public:
  /// The unit begins with `first`. `shared`: kPairsShared bytes.
  __device__ PairsStage(const RopePairsParams& p, char* shared, const PairsStep& first)
      : p_(p), mine_(shared + 16 * ptx::thread_index_here()), next_(first) {
    const LanePieces pieces = pieces_here<kSpec>(p);
    constexpr std::int32_t kNone = 1 << 28;
    const int team = (ptx::thread_index_here() & 31) / kSpec.lanes;
    first_head_ = pieces.live ? team & (p.step_heads - 1) : kNone;
    gap_ = static_cast<std::uint32_t>(pieces.gap());
    begin_kind();
  }

  /// Elements between the lane's pieces.
  __device__ std::uint32_t gap() const { return ptx::word_here(gap_); }

  /// The head of the lane's team in a step; past the last where there is none for it, or where the
  /// lane has no elements.
  __device__ std::int32_t head(const PairsStep& step) const { return step.head + first_head_; }

  /// Begins to copy the rows of the next step, the unit's `index`-th; those of `index` -
  /// kStageRows were in their place.
  __device__ void copy(std::int32_t index) {
    const std::uint32_t to = ptx::shared_address(piece(index, 0));
    const bool live = head(next_) < heads_;
    ptx::cp_async_16(to, from_, live);
    ptx::cp_async_16(to + 16 * kPairsThreads, from_ + ptx::word_here(gap_) * 2, live);
    from_ += p_.inputs[next_.kind].step_stride;
    next_.head += p_.step_heads;
    if (next_.head < heads_) return;
    to_next_kind(p_, next_);
    begin_kind();
  }

  /// The lane's pieces of the unit's `index`-th step, which have come; zeros where it has none.
  __device__ LaneWords row(std::int32_t index) const {
    LaneWords row;
    HPCATTN_UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint4 words = *piece(index, i);
      row.words[4 * i] = words.x;
      row.words[4 * i + 1] = words.y;
      row.words[4 * i + 2] = words.z;
      row.words[4 * i + 3] = words.w;
    }
    return row;
  }

  /// Puts other words in the place of these.
  __device__ void put(std::int32_t index, const LaneWords& row) const {
    HPCATTN_UNROLL
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t* words = row.words + 4 * i;
      *piece(index, i) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }

  /// Element `at` of the lane's 16.
  __device__ float element(std::int32_t index, int at) const {
    const auto* codes = reinterpret_cast<const std::uint16_t*>(piece(index, at / 8));
    return decode<kSpec.dtype>(std::uint32_t{codes[at % 8]});
  }

  __device__ TokenNotes& notes() const {
    return *reinterpret_cast<TokenNotes*>(lane_piece(2 * kStageRows));
  }

  /// Room for number `at` of the lane's 16, in groups of four.
  __device__ float& number(int at) const {
    return reinterpret_cast<float*>(lane_piece(2 * kStageRows + 1 + at / 4))[at % 4];
  }

 private:
  __device__ void begin_kind() {
    const PairsInput& input = p_.inputs[next_.kind];
    // Teams without a token copy the last one's rows, which they do not store.
    const std::int32_t last = static_cast<std::int32_t>(p_.rope.num_tokens) - 1;
    const std::int32_t token = min(token_here<kSpec>(p_, next_), last);
    from_ = input.data + std::int64_t{token} * input.token_stride +
            std::int64_t{head(next_)} * input.head_stride + pieces_here<kSpec>(p_).first * 2;
    heads_ = num_heads(p_, next_.kind);
  }

  __device__ uint4* piece(std::int32_t index, int i) const {
    return lane_piece(2 * (index & (kStageRows - 1)) + i);
  }

  /// Shared memory is pieces of 16 bytes, [number][thread]; each lane has its own.
  __device__ uint4* lane_piece(int number) const {
    return reinterpret_cast<uint4*>(mine_) + number * kPairsThreads;
  }

  const RopePairsParams& p_;
  char* mine_;                  // the lane's first piece of shared memory
  PairsStep next_;              // to be copied
  const char* from_ = nullptr;  // the lane's first piece of that
  std::int32_t heads_;          // of its kind
  std::int32_t first_head_;     // of the lane's team, from the step's on
  std::uint32_t gap_;
};

}  // namespace hpcattn
