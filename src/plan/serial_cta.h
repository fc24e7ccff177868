// SPDX-License-Identifier: Apache-2.0
// The planner of a GPU on the host: each phase runs thread after thread. For tests, and to show
// what a GPU of so many multiprocessors would be given.
#pragma once

#include <cstring>
#include <vector>

#include "src/plan/balance.h"

namespace hpcattn::plan {

class SerialCta {
 public:
  static constexpr bool kChecked = true;

  explicit SerialCta(int num_threads) : num_threads_(num_threads) {}

  int num_threads() const { return num_threads_; }

  template <typename Body>
  void each(int active, const Body& body) {
    for (int t = 0; t < active; ++t) body(t);
  }

  template <typename Sum, typename Make, typename Use>
  void scan(int active, const Make& make, const Use& use) {
    std::vector<Sum> before{Sum{}};
    for (int t = 0; t < active; ++t) before.push_back(before.back() + make(t));
    for (int t = 0; t < active; ++t) use(t, before[static_cast<std::size_t>(t)], before.back());
  }

  template <typename T>
  void store(std::int32_t* words, const T& value) {
    std::memcpy(words, &value, sizeof(value));
  }

  void report(FaultKind kind, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
    if (fault.kind != 0) return;  // the first wins
    fault = {.kind = static_cast<std::int32_t>(kind), .values = {a, b, c, d}};
  }

  Fault fault;

 private:
  int num_threads_;
};

}  // namespace hpcattn::plan
