// SPDX-License-Identifier: Apache-2.0
#include "torch/arguments.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>

#include "src/common/check.h"

namespace hpcattn::torch_ops {
namespace {

Tensor view(const StableTensor& tensor, DType dtype, void* data) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  return Tensor(data, dtype, {sizes.data(), sizes.size()}, {strides.data(), strides.size()});
}

/// Calls an operator of torch through its dispatcher, in place on `stack`.
void call(const char* name, StableIValue* stack) {
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, "", stack, TORCH_ABI_VERSION));
}

/// The stable ABI has no getter of requires_grad: an alias of a tensor that requires grad, made
/// while grad mode is on, is not a leaf. Two calls of the dispatcher, only made in grad mode.
bool requires_grad(const StableTensor& tensor) {
  std::array<StableIValue, 1> stack{torch::stable::detail::from(tensor)};
  call("aten::alias", stack.data());
  call("aten::is_leaf", stack.data());
  return !torch::stable::detail::to<bool>(stack[0]);
}

std::string device_name(std::int32_t type) {
  if (type == aoti_torch_device_type_cuda()) return "cuda";
  if (type == aoti_torch_device_type_meta()) return "meta";
  if (type == aoti_torch_device_type_xpu()) return "xpu";
  if (type == aoti_torch_device_type_mps()) return "mps";
  return "a device of type " + std::to_string(type);
}

}  // namespace

Arguments::Arguments(std::string_view op)
    : op_(op), grad_mode_(aoti_torch_grad_mode_is_enabled()) {}

DType Arguments::check_usable(std::string_view arg, const StableTensor& tensor) const {
  check(tensor.defined(), op_, ": ", arg, " is an undefined tensor.");
  std::int32_t device = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &device));
  check(device == aoti_torch_device_type_cpu(), op_, ": ", arg, " is on ", device_name(device),
        ", expected cpu. All tensors of a call must be on the CPU: move it there.");
  std::int32_t layout = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_layout(tensor.get(), &layout));
  check(layout == aoti_torch_layout_strided(), op_, ": ", arg,
        " has no strides (it is sparse or of a private layout), expected a strided tensor. Call "
        "to_dense() on it.");
  const DType dtype = dtype_of(op_, arg, tensor.scalar_type());
  if (grad_mode_ && is_float(dtype)) {
    check_supported(
        !requires_grad(tensor), op_, ": ", arg,
        " requires grad, and no gradient is computed here. Call under torch.no_grad() or "
        "torch.inference_mode(), or pass ",
        arg, ".detach().");
  }
  return dtype;
}

Tensor Arguments::input(std::string_view arg, const StableTensor& tensor) const {
  const DType dtype = check_usable(arg, tensor);
  // The library's Tensor has no const form; what is passed as an input is only read.
  return view(tensor, dtype, const_cast<void*>(tensor.const_data_ptr()));
}

Tensor Arguments::input(std::string_view arg, const OptionalTensor& tensor) const {
  return tensor ? input(arg, *tensor) : Tensor();
}

std::vector<Tensor> Arguments::inputs(std::string_view arg,
                                      const std::vector<StableTensor>& tensors) const {
  std::vector<Tensor> views;
  views.reserve(tensors.size());
  for (const StableTensor& tensor : tensors) {
    views.push_back(input(message(arg, "[", views.size(), "]"), tensor));
  }
  return views;
}

Tensor Arguments::output(std::string_view arg, const StableTensor& tensor) const {
  const DType dtype = check_usable(arg, tensor);
  return view(tensor, dtype, tensor.mutable_data_ptr());
}

Tensor Arguments::output(std::string_view arg, const OptionalTensor& tensor) const {
  return tensor ? output(arg, *tensor) : Tensor();
}

DType dtype_of(std::string_view op, std::string_view arg, ScalarType type) {
  switch (type) {
    case ScalarType::Float: return DType::kFloat32;
    case ScalarType::Half: return DType::kFloat16;
    case ScalarType::BFloat16: return DType::kBFloat16;
    case ScalarType::Float8_e4m3fn: return DType::kFloat8E4M3;
    case ScalarType::Float8_e5m2: return DType::kFloat8E5M2;
    case ScalarType::Int: return DType::kInt32;
    case ScalarType::Long: return DType::kInt64;
    case ScalarType::Byte: return DType::kUInt8;
    default: break;
  }
  check(
      false, op, ": ", arg, " has torch's dtype ", torch::headeronly::toString(type),
      ", which no operator takes. Expected float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, "
      "or int32 and int64 for indices.");
  return DType::kFloat32;
}

int int_of(std::string_view op, std::string_view arg, std::int64_t value) {
  check(value >= 0 && value <= std::numeric_limits<int>::max(), op, ": ", arg, " is ", value,
        ", expected 0 to ", std::numeric_limits<int>::max(), ".");
  return static_cast<int>(value);
}

namespace {

/// The indices of one parallel_for, taken one by one: torch cuts ranges into equal chunks, and
/// tasks are not equal. An exception must not cross torch's C functions, so the first one waits
/// here.
struct Indices {
  const std::function<void(int)>* body = nullptr;
  int n = 0;
  std::atomic<int> next{0};
  std::mutex mutex;
  std::exception_ptr error;

  void take_all() {
    for (int i = next.fetch_add(1); i < n; i = next.fetch_add(1)) {
      try {
        (*body)(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
    }
  }
};

/// Whether this process is a forked child. The threads of torch's pool are the parent's: a loop
/// handed to it would wait for them for ever. The library's own pool starts anew in a child.
std::atomic<bool> forked{false};
[[maybe_unused]] const int kAtFork = pthread_atfork(nullptr, nullptr, [] { forked = true; });

int torch_threads() {
  std::uint32_t threads = 1;
  TORCH_ERROR_CODE_CHECK(torch_get_num_threads(&threads));
  return static_cast<int>(std::max(threads, 1U));
}

void torch_parallel(int n, const std::function<void(int)>& body) {
  Indices indices;
  indices.body = &body;
  indices.n = n;
  const auto worker = [](std::int64_t begin, std::int64_t end, void* context) {
    for (std::int64_t i = begin; i < end; ++i) static_cast<Indices*>(context)->take_all();
  };
  TORCH_ERROR_CODE_CHECK(torch_parallel_for(0, std::min(n, torch_threads()), 1, worker, &indices));
  if (indices.error) std::rethrow_exception(indices.error);
}

}  // namespace

Execution torch_execution() {
  Execution execution;
  execution.num_threads = torch_threads();
  if (!forked) execution.parallel_for = torch_parallel;
  return execution;
}

}  // namespace hpcattn::torch_ops
