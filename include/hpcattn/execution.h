// SPDX-License-Identifier: Apache-2.0
// Where and how an operator runs: threads of the CPU, the stream of a GPU.
#pragma once

#include <cstddef>
#include <functional>

namespace hpcattn {

/// parallel_for(n, body) calls body(0) .. body(n - 1), from any threads, and returns when all are
/// done.
using ParallelFor = std::function<void(int, const std::function<void(int)>&)>;

struct Execution {
  /// CPU: threads to use. 0: HPCATTN_NUM_THREADS where it is set, else the cores of this process.
  int num_threads = 0;

  /// CPU: the caller's own thread pool. Empty: the library's.
  ParallelFor parallel_for;

  /// GPU: a cudaStream_t / CUstream; null is the default stream.
  void* stream = nullptr;

  /// GPU: memory for one call, valid in stream order from the call's start to its end (an engine's
  /// caching allocator). Empty: the driver's stream-ordered pool.
  std::function<void*(std::size_t bytes)> allocate;

  /// GPU: read page ids, lengths and slots back and check them before the launch (slow: it waits
  /// for the stream). On the CPU they are always checked.
  bool check_values = false;
};

/// The threads that `execution` asks for, 0 resolved.
int num_threads(const Execution& execution);

}  // namespace hpcattn
