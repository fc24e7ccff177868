// SPDX-License-Identifier: Apache-2.0
// From torch's tensors to the library's, and from the library's errors to Python's.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "hpcattn/error.h"
#include "hpcattn/execution.h"
#include "hpcattn/tensor.h"

namespace hpcattn::torch_ops {

using StableTensor = torch::stable::Tensor;
using OptionalTensor = std::optional<torch::stable::Tensor>;
using torch::headeronly::ScalarType;

/// Takes the tensors of one call, each by its name. Refuses what no operator accepts: a device
/// other than the CPU, a layout without strides, an unknown dtype, and a gradient that would be
/// lost.
class Arguments {
 public:
  explicit Arguments(std::string_view op);

  Tensor input(std::string_view arg, const StableTensor& tensor) const;
  Tensor input(std::string_view arg, const OptionalTensor& tensor) const;
  std::vector<Tensor> inputs(std::string_view arg, const std::vector<StableTensor>& tensors) const;
  Tensor output(std::string_view arg, const StableTensor& tensor) const;
  Tensor output(std::string_view arg, const OptionalTensor& tensor) const;

 private:
  DType check_usable(std::string_view arg, const StableTensor& tensor) const;

  std::string_view op_;
  bool grad_mode_;
};

/// Throws InvalidArgument for a dtype that no operator knows.
DType dtype_of(std::string_view op, std::string_view arg, ScalarType type);

/// A schema's int as the library's, InvalidArgument where it does not fit.
int int_of(std::string_view op, std::string_view arg, std::int64_t value);

/// Runs on torch's own threads, so that no second pool competes with them; in a forked child, which
/// has none of them, on the library's.
Execution torch_execution();

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
