// SPDX-License-Identifier: Apache-2.0
// Where an operator runs: torch's own threads, torch's current stream, torch's allocator.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstddef>
#include <vector>

#include "hpcattn/execution.h"
#include "hpcattn/tensor.h"

namespace hpcattn::torch_ops {

/// GPU memory of one call, from torch's caching allocator. It goes back when the call returns,
/// which is right in stream order: the allocator gives a block to the stream that it was taken on
/// alone. While a graph is captured it comes from the graph's own pool.
class CallMemory {
 public:
  void* take(std::size_t bytes, int device);

 private:
  std::vector<torch::stable::Tensor> blocks_;
};

/// On the CPU: torch's own threads, so that no second pool competes with them; in a forked child,
/// which has none of them, the library's. On a GPU: torch's current stream of that device, and
/// `memory`, which must outlive the call.
Execution torch_execution(Device device, CallMemory& memory);

/// Threads of torch's pool.
int torch_threads();

/// Whether calls on a GPU read lengths, page ids and slots back and check them: at first as
/// HPCATTN_CHECK_VALUES says. Returns what it was.
bool set_check_values(bool on);

}  // namespace hpcattn::torch_ops
