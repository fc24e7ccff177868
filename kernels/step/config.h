// SPDX-License-Identifier: Apache-2.0
// The one variant of the kernel that puts a step into a graph's memory.
#pragma once

namespace hpcattn {

struct StepSpec {
  friend bool operator==(const StepSpec&, const StepSpec&) = default;
};

inline constexpr int kStepThreads = 256;  // of a cta, a thread to a word

}  // namespace hpcattn
