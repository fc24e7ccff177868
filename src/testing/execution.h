// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hpcattn/execution.h"

namespace hpcattn::testkit {

/// Sanitizer builds, which are slow, run one of so many cases of the large tables.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr std::uint64_t kCaseStep = 5;
#else
inline constexpr std::uint64_t kCaseStep = 1;
#endif

inline Execution with_threads(int num_threads) {
  Execution execution;
  execution.num_threads = num_threads;
  return execution;
}

}  // namespace hpcattn::testkit
