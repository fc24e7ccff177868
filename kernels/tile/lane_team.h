// SPDX-License-Identifier: Apache-2.0
// The lanes of a warp, or of a part of one, that work on a row together. What each lane does is a
// function of its number and its state; what passes between them goes through here. So the code of
// a row is plain C++: src/testing/host_team.h runs it on the CPU, lane by lane.
//
//   team.each([&](int lane, State& state) { state.x = load(lane); });
//   const double total = team.sum([&](int lane, State& state) { return state.x * state.x; });
#pragma once

#include <cstdint>

namespace hpcattn {

/// `num_lanes` (8, 16 or 32) neighbouring lanes. All of a team's calls are made by all its lanes.
template <typename State, int kThreads>
class LaneTeam {
 public:
  explicit LaneTeam(int num_lanes)
      : num_lanes_(num_lanes),
        lane_(static_cast<int>(threadIdx.x) & (num_lanes - 1)),
        mask_((0xffffffffU >> (32 - num_lanes)) << (threadIdx.x & 31U & ~(num_lanes - 1U))) {}

  int num_lanes() const { return num_lanes_; }

  /// Teams of this cta, and which of them this is.
  int num_teams() const { return kThreads / num_lanes_; }
  int team() const { return static_cast<int>(threadIdx.x) / num_lanes_; }

  template <typename Body>
  void each(const Body& body) {
    body(lane_, state_);
  }

  /// What any lane has read of memory before is read; what it writes after comes later.
  void sync() { __syncwarp(mask_); }

  /// In an order that depends on the number of lanes alone.
  template <typename Body>
  double sum(const Body& body) {
    double value = body(lane_, state_);
    for (int distance = num_lanes_ / 2; distance > 0; distance /= 2) {
      value += __shfl_xor_sync(mask_, value, distance);
    }
    return value;
  }

  /// The largest that is a number; `lowest` where there is none.
  template <typename Body>
  double max(double lowest, const Body& body) {
    double value = body(lane_, state_);
    value = value > lowest ? value : lowest;
    for (int distance = num_lanes_ / 2; distance > 0; distance /= 2) {
      const double other = __shfl_xor_sync(mask_, value, distance);
      value = other > value ? other : value;
    }
    return value;
  }

  /// What the body gives on lane `source`.
  template <typename Body>
  double of_lane(int source, const Body& body) {
    return __shfl_sync(mask_, static_cast<double>(body(lane_, state_)), source, num_lanes_);
  }

  /// The sum over all teams of the cta of what each gives, in the order of the teams. A barrier of
  /// the cta: memory read before it is read. Called once by a kernel, or between other barriers.
  double sum_of_teams(double value) {
    __shared__ double parts[kThreads / 8];
    __syncthreads();
    if (lane_ == 0) parts[team()] = value;
    __syncthreads();
    double total = 0.0;
    for (int i = 0; i < num_teams(); ++i) total += parts[i];
    return total;
  }

 private:
  int num_lanes_;
  int lane_;
  unsigned mask_;
  State state_;
};

}  // namespace hpcattn
