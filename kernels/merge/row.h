// SPDX-License-Identifier: Apache-2.0
// One row of merge_partials: the weights of its partials from their LSEs, then their weighted sum
// in the order of the partials, all in float64, so that what is left is the rounding to out's
// dtype.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/merge/config.h"
#include "kernels/merge/params.h"
#include "kernels/tile/convert.h"

namespace hpcattn {

struct MergeLane {
  double weight;
  double sum[kLaneElements];
};

inline constexpr double kMinusInfinity = std::bit_cast<double>(std::uint64_t{0xfff} << 52);

struct MergeRow {
  std::int64_t token;
  std::int64_t head;

  char* of(const MergeView& view) const {
    return view.data + token * view.token_stride + head * view.head_stride;
  }
  float& lse_of(const MergeView& view) const {
    return *reinterpret_cast<float*>(view.lse + token * view.lse_token_stride +
                                     head * view.lse_head_stride);
  }
};

/// What all weights of a row are made with.
struct MergeScale {
  double largest = kMinusInfinity;  // of the LSEs that are numbers
  double sum = 0.0;                 // of exp(lse - largest); 0: no partial saw a key

  /// Not over `sum` yet. A partial that saw no key weighs 0; a NaN is passed on.
  double weight(double lse) const { return lse == kMinusInfinity ? 0.0 : std::exp(lse - largest); }
  double lse() const { return sum == 0.0 ? kMinusInfinity : largest + std::log(sum); }
};

template <typename Team>
inline MergeScale merge_scale(const MergeView* partials, int num_partials, const MergeRow& row,
                              Team& team) {
  MergeScale scale;
  scale.largest = team.max(kMinusInfinity, [&](int lane, MergeLane&) {
    double largest = kMinusInfinity;
    for (int s = lane; s < num_partials; s += team.num_lanes()) {
      const double lse = row.lse_of(partials[s]);
      largest = lse > largest ? lse : largest;
    }
    return largest;
  });
  scale.sum = team.sum([&](int lane, MergeLane&) {
    double sum = 0.0;
    for (int s = lane; s < num_partials; s += team.num_lanes()) {
      sum += scale.weight(row.lse_of(partials[s]));
    }
    return sum;
  });
  return scale;
}

/// Elements of a row that begin at `first`, kLaneElements at most.
constexpr int num_elements(std::int64_t head_dim, std::int64_t first) {
  const std::int64_t rest = head_dim - first;
  return rest < 0 ? 0 : rest < kLaneElements ? static_cast<int>(rest) : kLaneElements;
}

template <MergeSpec kSpec, typename Team>
inline void merge_row(const MergeParams& p, Team& team, std::int64_t index) {
  constexpr auto kBytes = static_cast<int>(size_bytes(kSpec.dtype));
  constexpr auto kOutBytes = static_cast<int>(size_bytes(kSpec.out_dtype));
  const MergeRow row{index / p.num_heads, index % p.num_heads};
  const MergeView* partials = p.more != nullptr ? p.more : p.partials;
  const MergeScale scale = merge_scale(partials, p.num_partials, row, team);
  const std::int64_t round = std::int64_t{team.num_lanes()} * kLaneElements;
  for (std::int64_t begin = 0; begin < p.head_dim; begin += round) {
    team.each([](int, MergeLane& state) {
      HPCATTN_UNROLL
      for (int i = 0; i < kLaneElements; ++i) state.sum[i] = 0.0;
    });
    for (int block = 0; block < p.num_partials; block += team.num_lanes()) {
      // A lane to a partial: the exponentials are the dear part.
      team.each([&](int lane, MergeLane& state) {
        const int s = block + lane;
        state.weight = s < p.num_partials ? scale.weight(row.lse_of(partials[s])) / scale.sum : 0.0;
      });
      const int rest = p.num_partials - block;
      const int count = rest < team.num_lanes() ? rest : team.num_lanes();
      for (int i = 0; i < count; ++i) {
        const double weight = team.of_lane(i, [](int, MergeLane& state) { return state.weight; });
        // What a partial without keys holds may be NaN. The weights are then 0 or 0 / 0.
        if (weight == 0.0 || scale.sum == 0.0) continue;
        const MergeView& partial = partials[block + i];
        team.each([&](int lane, MergeLane& state) {
          const std::int64_t first = begin + lane * kLaneElements;
          float x[kLaneElements];
          decode<kSpec.dtype>(load_codes<kBytes>(row.of(partial) + first * kBytes,
                                                 num_elements(p.head_dim, first), partial.vectors),
                              x);
          HPCATTN_UNROLL
          for (int j = 0; j < kLaneElements; ++j) {
            state.sum[j] = std::fma(weight, double{x[j]}, state.sum[j]);
          }
        });
      }
    }
    team.each([&](int lane, MergeLane& state) {
      const std::int64_t first = begin + lane * kLaneElements;
      store_codes(encode<kSpec.out_dtype>(state.sum), row.of(p.out) + first * kOutBytes,
                  num_elements(p.head_dim, first), p.out.vectors);
    });
  }
  team.sync();  // lse may be one of those read above
  team.each([&](int lane, MergeLane&) {
    if (lane == 0 && p.out.lse != nullptr) row.lse_of(p.out) = static_cast<float>(scale.lse());
  });
}

}  // namespace hpcattn
