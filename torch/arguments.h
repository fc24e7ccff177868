// SPDX-License-Identifier: Apache-2.0
// From torch's tensors to the library's, and from the library's errors to Python's.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "hpcattn/error.h"
#include "hpcattn/execution.h"
#include "hpcattn/tensor.h"
#include "torch/execution.h"

namespace hpcattn::torch_ops {

using StableTensor = torch::stable::Tensor;
using OptionalTensor = std::optional<torch::stable::Tensor>;
using torch::headeronly::ScalarType;

/// "k_cache", or "partials[2]": made text where something is wrong alone.
struct ArgName {
  ArgName(const char* name_of, std::size_t index_of = kNoIndex) : name(name_of), index(index_of) {}

  static constexpr std::size_t kNoIndex = static_cast<std::size_t>(-1);
  const char* name;
  std::size_t index;
};

std::ostream& operator<<(std::ostream& stream, const ArgName& arg);

/// Takes the tensors of one call, each by its name. Refuses what no operator accepts: a device
/// that is neither the CPU nor a CUDA GPU, tensors on unlike devices, a layout without strides, an
/// unknown dtype, and a gradient that would be lost.
class Arguments {
 public:
  explicit Arguments(const char* op);
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  Tensor input(ArgName arg, const StableTensor& tensor);
  Tensor input(ArgName arg, const OptionalTensor& tensor);
  std::vector<Tensor> inputs(const char* arg, const std::vector<StableTensor>& tensors);
  Tensor output(ArgName arg, const StableTensor& tensor);
  Tensor output(ArgName arg, const OptionalTensor& tensor);

  /// Once all tensors are taken: how the call runs where they are. Memory that it takes lives as
  /// long as this object.
  Execution execution() { return torch_execution(device_, memory_); }

 private:
  DType check_usable(const ArgName& arg, const StableTensor& tensor);
  void check_device(const ArgName& arg, const StableTensor& tensor);
  Tensor view(const StableTensor& tensor, DType dtype, void* data) const;

  const char* op_;
  bool grad_mode_;
  const char* first_arg_ = nullptr;  // the first tensor's name; the others lie where it does
  Device device_{};
  CallMemory memory_;
};

/// Throws InvalidArgument for a dtype that no operator knows.
DType dtype_of(const char* op, const ArgName& arg, ScalarType type);

/// A schema's int as the library's, InvalidArgument where it does not fit.
int int_of(const char* op, const char* arg, std::int64_t value);

/// What errors of each kind begin with. No kind of exception passes the stable ABI in every version
/// of torch, so Python's wrappers raise ValueError and NotImplementedError by these words.
inline constexpr std::string_view kInvalidPrefix = "invalid argument: ";
inline constexpr std::string_view kUnsupportedPrefix = "not supported: ";

/// Runs an operator's body. Its errors reach Python as RuntimeError, their kind as a prefix.
template <typename Body>
auto run(const Body& body) {
  try {
    return body();
  } catch (const InvalidArgument& error) {
    throw std::runtime_error(std::string(kInvalidPrefix) + error.what());
  } catch (const Unsupported& error) {
    throw std::runtime_error(std::string(kUnsupportedPrefix) + error.what());
  }
}

}  // namespace hpcattn::torch_ops
