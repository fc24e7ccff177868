// SPDX-License-Identifier: Apache-2.0
// What ran: calls of operators and tasks of kernels, counted in this process. For tests, `generate`
// and whoever asks "did it really take that path?".
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace hpcattn {

/// By name, since the start or the last reset. Operators by their names ("paged_attention": calls
/// that passed their checks), kernels by path ("cpu/narrow/avx512": tasks that they computed).
std::map<std::string, std::int64_t> counters();

void reset_counters();

}  // namespace hpcattn
