// SPDX-License-Identifier: Apache-2.0
// Values of a call's GPU tensors for Execution::check_values: read back, they are checked by what
// checks those of the CPU.
#pragma once

#include <list>

#include "src/cuda/device.h"

namespace hpcattn::ops {

/// Copies live as long as this does.
class HostValues {
 public:
  explicit HostValues(const Execution& execution) : execution_(execution) {}

  /// The same tensor on the CPU; what is not given stays so. Waits for the stream.
  Tensor of(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    return copies_.emplace_back(tensor, execution_).tensor();
  }

 private:
  const Execution& execution_;
  std::list<cuda::HostCopy> copies_;
};

}  // namespace hpcattn::ops
