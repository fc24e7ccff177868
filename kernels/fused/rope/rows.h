// SPDX-License-Identifier: Apache-2.0
// The rows of a token: heads of q, then of k, then of v; each is loaded once, normed, turned and
// stored wherever it goes. A team is LaneTeam on the device, HostTeam in tests.
#pragma once

#include <cstdint>

#include "kernels/fused/rope/config.h"
#include "kernels/fused/rope/lane.h"
#include "kernels/fused/rope/params.h"
#include "kernels/fused/rope/token.h"

namespace hpcattn {

/// Row `index` of a token.
struct RowId {
  int kind;  // RopeRow
  std::int32_t head;
};

constexpr RowId row_id(const RopeParams& p, std::int32_t index) {
  if (index < p.num_q_heads) return {kQueryRow, index};
  if (index < p.num_q_heads + p.num_kv_heads) return {kKeyRow, index - p.num_q_heads};
  return {kValueRow, index - p.num_q_heads - p.num_kv_heads};
}

/// Rows first, first + step, ... below end.
struct RowRange {
  std::int32_t first;
  std::int32_t end;
  std::int32_t step;
};

/// Something of this row is wanted.
constexpr bool is_wanted(const RopeParams& p, RowId row, const CachePlace& place) {
  return row.kind == kQueryRow || place.page >= 0 || p.outputs[row.kind].data != nullptr;
}

template <typename Team>
inline void zero_rows(const RopeParams& p, Team& team, std::int64_t token, const RowRange& rows) {
  for (std::int32_t index = rows.first; index < rows.end; index += rows.step) {
    const RowId id = row_id(p, index);
    const RowsView& output = p.outputs[id.kind];
    team.each([&](int lane, RopeLane&) {
      const double zeros[kLaneElements] = {};
      if (output.data != nullptr && has_elements(p, lane)) {
        store_row(zeros, 1.0, output.row(token, id.head), output.dtype, output.vectors, lane);
      }
      if (id.kind == kQueryRow && p.out_q_scale.data != nullptr && lane == 0) {
        *reinterpret_cast<float*>(p.out_q_scale.row(token, id.head)) = 0.0F;
      }
    });
  }
}

/// Stores y: where `id` goes in the cache and among the outputs.
template <typename Team>
inline void store_y(const RopeParams& p, Team& team, std::int64_t token, RowId id,
                    const CachePlace& place, double scale) {
  const RowsView& output = p.outputs[id.kind];
  // One body for both targets: the conversions to each dtype are most of the kernel's code.
  for (int target = place.page < 0 ? 1 : 0; target < 2; ++target) {
    const bool to_cache = target == 0;
    if (to_cache && id.kind == kQueryRow) continue;
    if (!to_cache && output.data == nullptr) continue;
    const CacheView& cache = p.caches[id.kind == kValueRow ? 1 : 0];
    char* row = to_cache ? cache.row(place.page, place.place, id.head) : output.row(token, id.head);
    const DType dtype = to_cache ? cache.dtype : output.dtype;
    const bool vectors = to_cache ? cache.vectors : output.vectors;
    team.each([&](int lane, RopeLane& state) {
      if (has_elements(p, lane)) store_row(state.y, scale, row, dtype, vectors, lane);
    });
  }
}

/// The scale of the q row in y; handed out where the caller asks for it.
template <typename Team>
inline double scale_of_query(const RopeParams& p, Team& team, std::int64_t token,
                             std::int32_t head) {
  if (!is_fp8(p.outputs[kQueryRow].dtype)) return 1.0;
  float scale = p.scales[kQueryRow].at(0);
  if (p.scales[kQueryRow].data == nullptr) {
    const double amax = team.max(0.0, [](int, RopeLane& state) { return largest_of(state.y); });
    scale = dynamic_scale(amax, p.upper_max);
  }
  if (p.out_q_scale.data != nullptr) {
    team.each([&](int lane, RopeLane&) {
      if (lane == 0) *reinterpret_cast<float*>(p.out_q_scale.row(token, head)) = scale;
    });
  }
  return scale;
}

/// V passes through: the same bits where the dtype is the same.
template <RopeSpec kSpec, typename Team>
inline void value_row(const RopeParams& p, Team& team, std::int64_t token, RowId id,
                      const CachePlace& place) {
  constexpr auto kBytes = static_cast<int>(size_bytes(kSpec.dtype));
  const RowsView& input = p.inputs[kValueRow];
  const RowsView& output = p.outputs[kValueRow];
  const CacheView& cache = p.caches[1];
  const char* from = input.row(token, id.head);
  const double scale = p.scales[kValueRow].at(id.head);
  team.each([&](int lane, RopeLane& state) {
    if (!has_elements(p, lane)) return;
    const std::int32_t first = lane * kLaneElements;
    const auto codes = load_codes<kBytes>(from + first * kBytes, kLaneElements, input.vectors);
    decode<kSpec.dtype>(codes, state.x);
    HPCATTN_UNROLL
    for (int i = 0; i < kLaneElements; ++i) state.y[i] = state.x[i];
    const auto store = [&](char* row, DType dtype, bool vectors) {
      if (dtype == kSpec.dtype) {
        store_codes(codes, row + first * kBytes, kLaneElements, vectors);
      } else {
        store_row(state.y, scale, row, dtype, vectors, lane);
      }
    };
    if (place.page >= 0) {
      store(cache.row(place.page, place.place, id.head), cache.dtype, cache.vectors);
    }
    if (output.data != nullptr) store(output.row(token, id.head), output.dtype, output.vectors);
  });
}

/// A head of q or k. `factor_of_token`: the norm's, for RopeNorm::kToken.
template <RopeSpec kSpec, typename Team>
inline void turned_row(const RopeParams& p, Team& team, std::int64_t token, RowId id,
                       const CachePlace& place, double factor_of_token) {
  const RowsView& input = p.inputs[id.kind];
  const char* row = input.row(token, id.head);
  team.each([&](int lane, RopeLane& state) { load_row<kSpec.dtype>(p, input, row, lane, state); });
  team.sync();  // the output may be the input, and lanes read each other's elements
  if constexpr (kSpec.norm == RopeNorm::kNone) {
    team.each([](int, RopeLane& state) { rotate(state); });
  } else {
    double factor = factor_of_token;
    std::int64_t first_weight = std::int64_t{id.head} * p.head_dim;
    if constexpr (kSpec.norm == RopeNorm::kHead) {
      first_weight = 0;
      factor = norm_factor(team.sum([&](int, RopeLane& state) { return square_to_norm(p, state); }),
                           p.head_dim, p.eps);
    } else {
      team.each([&](int, RopeLane& state) { square_to_norm(p, state); });
    }
    team.each([&](int lane, RopeLane& state) {
      norm(p, p.weights[id.kind], first_weight, factor, lane, state);
    });
  }
  const double scale = id.kind == kQueryRow ? scale_of_query(p, team, token, id.head)
                                            : double{p.scales[id.kind].at(id.head)};
  store_y(p, team, token, id, place, scale);
}

/// The norm's factors over all heads of a token.
struct TokenFactors {
  double of_q = 1.0;
  double of_k = 1.0;
};

/// All teams of the cta come here.
template <RopeSpec kSpec, typename Team>
inline TokenFactors token_factors(const RopeParams& p, Team& team, std::int64_t token,
                                  const RowRange& rows) {
  double sum_of_q = 0.0;
  double sum_of_k = 0.0;
  for (std::int32_t index = rows.first; index < rows.end; index += rows.step) {
    const RowId id = row_id(p, index);
    if (id.kind == kValueRow) break;
    const RowsView& input = p.inputs[id.kind];
    const char* row = input.row(token, id.head);
    const double sum = team.sum([&](int lane, RopeLane& state) {
      load_row<kSpec.dtype>(p, input, row, lane, state);
      return square_to_norm(p, state);
    });
    if (id.kind == kQueryRow) {
      sum_of_q += sum;
    } else {
      sum_of_k += sum;
    }
  }
  const std::int64_t head_dim = p.head_dim;
  TokenFactors factors;
  factors.of_q = norm_factor(team.sum_of_teams(sum_of_q), p.num_q_heads * head_dim, p.eps);
  factors.of_k = norm_factor(team.sum_of_teams(sum_of_k), p.num_kv_heads * head_dim, p.eps);
  return factors;
}

/// What a team does to its rows of a token.
template <RopeSpec kSpec, typename Team>
inline void rope_rows(const RopeParams& p, Team& team, std::int64_t token, const RowRange& rows) {
  const TokenPlace place = place_of_token(p, token);
  if (place.kind == TokenPlace::Kind::kFaulty) return;
  if (place.kind == TokenPlace::Kind::kPadding) return zero_rows(p, team, token, rows);
  team.each([&](int lane, RopeLane& state) { load_turns(p, place.positions, lane, state); });
  TokenFactors factors;
  if constexpr (kSpec.norm == RopeNorm::kToken)
    factors = token_factors<kSpec>(p, team, token, rows);
  for (std::int32_t index = rows.first; index < rows.end; index += rows.step) {
    const RowId id = row_id(p, index);
    if (!is_wanted(p, id, place.cache)) continue;
    if (id.kind == kValueRow) {
      value_row<kSpec>(p, team, token, id, place.cache);
    } else {
      turned_row<kSpec>(p, team, token, id, place.cache,
                        id.kind == kQueryRow ? factors.of_q : factors.of_k);
    }
  }
}

}  // namespace hpcattn
