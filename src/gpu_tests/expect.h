// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>
#include <vector>

#include "src/testing/gpu_cases.h"

namespace hpcattn::testkit {

/// Cases with a to_string() are named in what they throw.
template <typename Case>
std::string describe(const Case& c) {
  if constexpr (requires { to_string(c); }) {
    return to_string(c);
  } else {
    return "a case";
  }
}

/// body(lane, a case) gives "" when all is well.
template <typename Case, typename Body>
void expect_all_right(const std::vector<Case>& cases, Body body) {
  const auto run = [&](GpuLane& lane, std::size_t i) -> std::string {
    try {
      return body(lane, cases[i]);
    } catch (const std::exception& error) {
      return describe(cases[i]) + " threw: " + error.what();
    }
  };
  for (const std::string& failure : failures_of_cases(cases.size(), run)) ADD_FAILURE() << failure;
}

}  // namespace hpcattn::testkit
