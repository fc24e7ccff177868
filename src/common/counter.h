// SPDX-License-Identifier: Apache-2.0
// A named counter that hpcattn/counters.h reports. Make it static, in the file that counts.
#pragma once

#include <atomic>
#include <cstdint>

namespace hpcattn {

class Counter {
 public:
  explicit Counter(const char* name);
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;

  void add(std::int64_t count = 1) { value_.fetch_add(count, std::memory_order_relaxed); }

 private:
  friend class CounterList;

  const char* name_;
  std::atomic<std::int64_t> value_{0};
  Counter* next_;
};

}  // namespace hpcattn
