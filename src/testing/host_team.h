// SPDX-License-Identifier: Apache-2.0
// The team of kernels/tile/lane_team.h on the CPU: the code of a row runs lane by lane, so that it
// is tested, arithmetic and addresses, without a GPU. States start as NaN, as registers do.
#pragma once

#include <cstring>
#include <vector>

namespace hpcattn::testkit {

template <typename State>
class HostTeam {
 public:
  explicit HostTeam(int num_lanes) : states_(static_cast<std::size_t>(num_lanes)) {
    std::memset(static_cast<void*>(states_.data()), 0xff, states_.size() * sizeof(State));
  }

  int num_lanes() const { return static_cast<int>(states_.size()); }

  template <typename Body>
  void each(const Body& body) {
    for (int lane = 0; lane < num_lanes(); ++lane) body(lane, state(lane));
  }

  void sync() {}

  template <typename Body>
  double sum(const Body& body) {
    std::vector<double> values = values_of(body);
    for (std::size_t distance = values.size() / 2; distance > 0; distance /= 2) {
      for (std::size_t lane = 0; lane < distance; ++lane) values[lane] += values[lane + distance];
    }
    return values[0];
  }

  template <typename Body>
  double max(double lowest, const Body& body) {
    for (double value : values_of(body)) lowest = value > lowest ? value : lowest;
    return lowest;
  }

  template <typename Body>
  double of_lane(int source, const Body& body) {
    return body(source, state(source));
  }

  /// One team alone takes all rows.
  double sum_of_teams(double value) { return value; }

 private:
  State& state(int lane) { return states_[static_cast<std::size_t>(lane)]; }

  template <typename Body>
  std::vector<double> values_of(const Body& body) {
    std::vector<double> values;
    for (int lane = 0; lane < num_lanes(); ++lane) values.push_back(body(lane, state(lane)));
    return values;
  }

  std::vector<State> states_;
};

}  // namespace hpcattn::testkit
