// SPDX-License-Identifier: Apache-2.0
#include "src/common/check.h"
#include "src/cuda/context.h"
#include "src/cuda/kernel.h"

namespace hpcattn::cuda {
namespace {

[[noreturn]] void throw_failed(const Kernel& kernel, const std::array<unsigned, 3>& grid,
                               unsigned threads, unsigned shared_bytes, Result result) {
  throw DeviceError(message("cuda: the launch of ", kernel.name(), " on device ", kernel.device(),
                            " failed, grid ", grid[0], "x", grid[1], "x", grid[2], ", ", threads,
                            " threads and ", shared_bytes,
                            " bytes of shared memory a cta: ", describe(result)));
}

}  // namespace

void launch_words(const Kernel& kernel, const std::array<unsigned, 3>& grid, bool programmatic,
                  const Execution& execution, const void* params) {
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return;
  const Driver& d = driver();
  const auto function = static_cast<Function>(kernel.function_);
  const auto stream = static_cast<Stream>(execution.stream);
  const auto threads = unsigned(kernel.threads_);
  // The driver reads the parameters only.
  void* arguments[] = {const_cast<void*>(params)};
  Result result = kSuccess;
  if (programmatic && d.launch_ex != nullptr && existing_state(kernel.device())->info.major >= 9) {
    LaunchAttribute attribute{};
    attribute.id = kProgrammaticSerialization;
    attribute.value.programmatic_serialization = 1;
    const LaunchConfig config{.grid = {grid[0], grid[1], grid[2]},
                              .cta = {threads, 1, 1},
                              .shared_bytes = kernel.shared_bytes_,
                              .stream = stream,
                              .attributes = &attribute,
                              .num_attributes = 1};
    result = d.launch_ex(&config, function, arguments, nullptr);
  } else {
    result = d.launch(function, grid[0], grid[1], grid[2], threads, 1, 1, kernel.shared_bytes_,
                      stream, arguments, nullptr);
  }
  if (result != kSuccess) [[unlikely]] {
    throw_failed(kernel, grid, threads, kernel.shared_bytes_, result);
  }
}

}  // namespace hpcattn::cuda
