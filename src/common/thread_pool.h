// SPDX-License-Identifier: Apache-2.0
// The CPU threads of operators whose caller brings none. Started at first use, never at import, and
// started anew in a forked child. docs/dependencies.md says why no library does it.
#pragma once

#include <functional>

#include "hpcattn/execution.h"

namespace hpcattn {

/// Runs body(0) .. body(n - 1), each once, on the caller's pool or the library's, and returns when
/// all are done. An exception of a body is thrown again here. Calls from several threads take
/// turns; a call from within a body runs in its own thread.
void run_parallel(const Execution& execution, int n, const std::function<void(int)>& body);

}  // namespace hpcattn
