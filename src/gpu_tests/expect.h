// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/testing/gpu_cases.h"

namespace hpcattn::testkit {

/// body(lane, a case) gives "" when all is well.
template <typename Case, typename Body>
void expect_all_right(const std::vector<Case>& cases, Body body) {
  const auto run = [&](GpuLane& lane, std::size_t i) { return body(lane, cases[i]); };
  for (const std::string& failure : failures_of_cases(cases.size(), run)) ADD_FAILURE() << failure;
}

}  // namespace hpcattn::testkit
