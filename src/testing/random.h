// SPDX-License-Identifier: Apache-2.0
// Random numbers that are the same with every standard library: a failure's seed repeats anywhere.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace hpcattn::testkit {

class Rng {
 public:
  explicit Rng(std::uint64_t seed) : state_(seed) {}

  /// splitmix64.
  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  /// In [low, high], both included.
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(high - low + 1));
  }

  /// In [low, high).
  double real(double low, double high) {
    return low + (high - low) * std::ldexp(static_cast<double>(next() >> 11), -53);
  }

  /// Mean 0, deviation 1.
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log(real(1e-12, 1.0)));
    return radius * std::cos(2.0 * 3.14159265358979323846 * real(0.0, 1.0));
  }

  bool chance(double probability) { return real(0.0, 1.0) < probability; }

  template <typename T>
  const T& pick(const std::vector<T>& choices) {
    return choices[static_cast<std::size_t>(
        integer(0, static_cast<std::int64_t>(choices.size()) - 1))];
  }

  template <typename T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1], values[static_cast<std::size_t>(next() % i)]);
    }
  }

 private:
  std::uint64_t state_;
};

}  // namespace hpcattn::testkit
