// SPDX-License-Identifier: Apache-2.0
// What Python tells and asks the CUDA side besides computing: where libnvrtc is, what there is.
#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "hpcattn/cuda.h"
#include "torch/arguments.h"

namespace hpcattn::torch_ops {
namespace {

void set_nvrtc_paths(std::vector<std::string> paths) { cuda::set_nvrtc_paths(std::move(paths)); }

std::string cuda_status(bool use_driver) {
  return run([&] { return cuda::status_json(use_driver); });
}

std::int64_t compilations() { return static_cast<std::int64_t>(cuda::compilations().size()); }

}  // namespace
}  // namespace hpcattn::torch_ops

STABLE_TORCH_LIBRARY_FRAGMENT(hpcattn, library) {
  library.def("set_nvrtc_paths(str[] paths) -> ()");
  library.def("cuda_status(bool use_driver) -> str");
  library.def("compilations() -> int");
}

STABLE_TORCH_LIBRARY_IMPL(hpcattn, CompositeExplicitAutograd, library) {
  namespace ops = hpcattn::torch_ops;
  library.impl("set_nvrtc_paths", TORCH_BOX(&ops::set_nvrtc_paths));
  library.impl("cuda_status", TORCH_BOX(&ops::cuda_status));
  library.impl("compilations", TORCH_BOX(&ops::compilations));
}
