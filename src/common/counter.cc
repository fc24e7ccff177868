// SPDX-License-Identifier: Apache-2.0
#include "src/common/counter.h"

#include "hpcattn/counters.h"

namespace hpcattn {

class CounterList {
 public:
  static std::atomic<Counter*>& head() {
    static std::atomic<Counter*> first{nullptr};
    return first;
  }

  template <typename Visit>
  static void for_each(const Visit& visit) {
    for (Counter* counter = head().load(); counter != nullptr; counter = counter->next_) {
      visit(counter->name_, counter->value_);
    }
  }
};

Counter::Counter(const char* name) : name_(name), next_(CounterList::head().load()) {
  while (!CounterList::head().compare_exchange_weak(next_, this)) {
  }
}

std::map<std::string, std::int64_t> counters() {
  std::map<std::string, std::int64_t> values;
  CounterList::for_each([&](const char* name, const std::atomic<std::int64_t>& value) {
    values[name] += value.load(std::memory_order_relaxed);
  });
  return values;
}

void reset_counters() {
  CounterList::for_each([](const char*, std::atomic<std::int64_t>& value) {
    value.store(0, std::memory_order_relaxed);
  });
}

}  // namespace hpcattn
