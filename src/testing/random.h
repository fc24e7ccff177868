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

  /// Mean 0, deviation 1, within +-3.5: the sum of four 16-bit numbers, near enough to normal.
  double normal() {
    const std::uint64_t bits = next();
    double sum = 0.0;
    for (int i = 0; i < 4; ++i) sum += static_cast<double>((bits >> (16 * i)) & 0xffffU) / 65536.0;
    return (sum - 2.0) * 1.7320508075688772;  // each of variance 1/12
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
