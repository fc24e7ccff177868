// SPDX-License-Identifier: Apache-2.0
// Entry of rope_norm_store_kv's kernel for 16-bit rows in aligned pieces: a warp to some rows of
// one kind of a token, all loaded before the token is looked up.
#pragma once

#include "kernels/fused/rope_pairs/row.h"
#include "kernels/ptx/copy.h"
#include "kernels/ptx/dependent.h"

namespace hpcattn {

/// The rows of a warp's unit, each lane's pieces in shared memory of its own: all of them are on
/// their way at once, which registers have no room for. No lane reads another's.
class PairsStage {
 public:
  /// Rows `first` to end - 1, dealt to the warp's teams. `shared`: [kRowsAhead][2][kPairsThreads]
  /// of 16 bytes.
  __device__ PairsStage(char* shared, int lanes, std::int32_t first, std::int32_t end)
      : of_warp_(first),
        of_team_(first + static_cast<int>(threadIdx.x) % 32 / lanes),
        end_(end),
        mine_(reinterpret_cast<uint4*>(shared) + threadIdx.x) {}

  /// `heads`: head 0 of the token.
  __device__ void copy(const char* heads, std::int64_t head_stride, const LanePieces& pieces,
                       int teams) const {
    HPCATTN_UNROLL
    for (int i = 0; i < kRowsAhead; ++i) {
      if (of_warp_ + i * teams >= end_) continue;
      const bool live = of_team_ + i * teams < end_ && pieces.live;
      const char* from = heads + (live ? of_team_ + i * teams : of_warp_) * head_stride;
      const std::uint32_t to = ptx::shared_address(mine_ + 2 * i * kPairsThreads);
      ptx::cp_async_16(to, from + (live ? pieces.first : 0) * 2, live);
      ptx::cp_async_16(to + 16 * kPairsThreads, from + (live ? pieces.second : 0) * 2, live);
    }
    ptx::cp_async_commit();
  }

  /// Whether any team of the warp has another row.
  __device__ bool has_rows() const { return of_warp_ < end_; }

  /// After the copies were waited for. A lane without elements has zeros.
  __device__ PairsRow row(bool has_elements) const {
    PairsRow row;
    row.live = of_team_ < end_ && has_elements;
    row.head = of_team_ < end_ ? of_team_ : of_warp_;
    HPCATTN_UNROLL
    for (int piece = 0; piece < 2; ++piece) {
      const uint4 words = mine_[piece * kPairsThreads];
      row.in.words[4 * piece] = words.x;
      row.in.words[4 * piece + 1] = words.y;
      row.in.words[4 * piece + 2] = words.z;
      row.in.words[4 * piece + 3] = words.w;
    }
    return row;
  }

  __device__ void advance(int teams) {
    of_warp_ += teams;
    of_team_ += teams;
    mine_ += 2 * kPairsThreads;
  }

 private:
  std::int32_t of_warp_;  // row of the warp's first team
  std::int32_t of_team_;
  std::int32_t end_;
  uint4* mine_;
};

/// A row of padding becomes 0.
template <RopePairsSpec kSpec>
inline void clear_row(const RopeParams& p, const PairsUnit& unit, const PairsRow& row) {
  if (!row.live) return;
  if (unit.in_output != nullptr) {
    const RowsView& output = p.outputs[unit.kind];
    const LanePieces pieces = pieces_here<kSpec>(p);
    char* to = unit.in_output + row.head * output.head_stride;
    if (size_bytes(output.dtype) == 1) {
      store_pieces<1>({}, pieces, to);
    } else {
      store_pieces<2>({}, pieces, to);
    }
  }
  if (unit.kind == kQueryRow && p.out_q_scale.data != nullptr && lane_here(p) == 0) {
    *reinterpret_cast<float*>(p.out_q_scale.row(unit.token, row.head)) = 0.0F;
  }
}

/// A number that is none, or infinite, among the lane's.
template <DType kDType>
inline bool has_infinite(const LaneWords& row) {
  constexpr std::uint32_t kExponent = kDType == DType::kFloat16 ? 0x7c00U : 0x7f80U;
  bool found = false;
  HPCATTN_UNROLL
  for (int i = 0; i < 8; ++i) {
    found |= (row.words[i] & kExponent) == kExponent;
    found |= (row.words[i] >> 16 & kExponent) == kExponent;
  }
  return found;
}

template <RopePairsSpec kSpec>
__device__ void rope_pairs(const RopePairsParams& p) {
  const RopeParams& rope = p.rope;
  const auto thread = static_cast<int>(threadIdx.x);
  const std::int32_t index = static_cast<std::int32_t>(blockIdx.x) * kPairsWarps + thread / 32;
  if (index >= p.num_units) return;
  const std::int32_t token = p.units_per_token.divide(index);
  std::int32_t part = index - token * static_cast<std::int32_t>(p.units_per_token.divisor);
  PairsUnit unit;
  unit.token = token;
  unit.kind = kQueryRow;
  if (part >= p.q_units) {
    part -= p.q_units;
    unit.kind = part < p.kv_units ? kKeyRow : kValueRow;
    if (unit.kind == kValueRow) part -= p.kv_units;
  }
  const std::int32_t num_heads = unit.kind == kQueryRow ? rope.num_q_heads : rope.num_kv_heads;
  const std::int32_t end = min(num_heads, (part + 1) * p.rows_per_unit);
  ptx::wait_for_kernel_before();
  ptx::let_next_kernel_begin();

  extern __shared__ __align__(16) char shared[];
  const int lanes = pairs_lanes(rope.head_dim);
  const int teams = 32 / lanes;
  PairsStage stage(shared, lanes, part * p.rows_per_unit, end);
  const RowsView& input = rope.inputs[unit.kind];
  stage.copy(input.row(token, 0), input.head_stride, pieces_here<kSpec>(rope), teams);
  const TokenPlace place = place_of_token(rope, token);
  if (place.kind == TokenPlace::Kind::kFaulty) return;
  const bool padding = place.kind == TokenPlace::Kind::kPadding;
  const RowsView& output = rope.outputs[unit.kind];
  if (output.data != nullptr) unit.in_output = output.row(token, 0);
  if (unit.kind != kQueryRow && place.cache.page >= 0) {
    const CacheView& cache = rope.caches[unit.kind == kValueRow ? 1 : 0];
    unit.in_cache = cache.row(place.cache.page, place.cache.place, 0);
  }
  if (unit.in_cache == nullptr && unit.in_output == nullptr) return;
  PairTurns turns;
  const bool turned = unit.kind != kValueRow && !padding;
  if (turned) {
    unit.position = position_of(rope, place.positions, pieces_here<kSpec>(rope).pair);
    load_turns<kSpec>(rope, unit, turns);
  }
  ptx::cp_async_wait<0>();
  HPCATTN_NO_UNROLL
  for (; stage.has_rows(); stage.advance(teams)) {  // the same for the whole warp
    const LanePieces pieces = pieces_here<kSpec>(rope);
    PairsRow row = stage.row(pieces.live);
    if (padding) {
      clear_row<kSpec>(rope, unit, row);
    } else if (!turned) {
      store_row_of_pairs<kSpec, false>(p, unit, turns, row);
    } else {
      // A lane that passes its numbers through multiplies partners by 0.
      if (!pieces.turns) row.doubtful = has_infinite<kSpec.dtype>(row.in);
      find_factor<kSpec>(p, turns, row);
      store_row_of_pairs<kSpec, true>(p, unit, turns, row);
    }
  }
}

}  // namespace hpcattn
