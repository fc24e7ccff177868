// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hpcattn/execution.h"

namespace hpcattn::testkit {

inline Execution with_threads(int num_threads) {
  Execution execution;
  execution.num_threads = num_threads;
  return execution;
}

}  // namespace hpcattn::testkit
