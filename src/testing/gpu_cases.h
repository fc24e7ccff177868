// SPDX-License-Identifier: Apache-2.0
// Many cases on one GPU: threads build them and judge them, each with a stream of its own.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "src/testing/gpu.h"

namespace hpcattn::testkit {

/// Calls body(lane, number) for each number below `count`, from HPCATTN_TEST_THREADS threads (as
/// many as there are cores where it is not set), and prints how far it is. The reports of the cases
/// that failed, at most ten. An error that the GPU's context does not survive ends the process.
std::vector<std::string> failures_of_cases(
    std::size_t count, const std::function<std::string(GpuLane&, std::size_t)>& body);

/// The lane of tests that have no cases. Used by one thread.
GpuLane& main_lane();

}  // namespace hpcattn::testkit
