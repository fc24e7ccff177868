// SPDX-License-Identifier: Apache-2.0
#include "torch/arguments.h"

#include <array>
#include <limits>

#include "src/common/check.h"

namespace hpcattn::torch_ops {
namespace {

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

std::string device_name(std::int32_t type, const StableTensor& tensor) {
  if (type == aoti_torch_device_type_cpu()) return "cpu";
  if (type == aoti_torch_device_type_meta()) return "meta";
  std::string name = "a device of type " + std::to_string(type);
  if (type == aoti_torch_device_type_cuda()) name = "cuda";
  if (type == aoti_torch_device_type_xpu()) name = "xpu";
  if (type == aoti_torch_device_type_mps()) name = "mps";
  return message(name, ":", tensor.get_device_index());
}

}  // namespace

std::ostream& operator<<(std::ostream& stream, const ArgName& arg) {
  stream << arg.name;
  if (arg.index != ArgName::kNoIndex) stream << '[' << arg.index << ']';
  return stream;
}

Arguments::Arguments(const char* op) : op_(op), grad_mode_(aoti_torch_grad_mode_is_enabled()) {}

void Arguments::check_device(const ArgName& arg, const StableTensor& tensor) {
  static const std::int32_t cpu = aoti_torch_device_type_cpu();
  static const std::int32_t cuda = aoti_torch_device_type_cuda();
  std::int32_t type = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &type));
  Device device;
  if (type == cuda) device = {DeviceType::kCuda, tensor.get_device_index()};
  const bool known = type == cpu || type == cuda;
  if (first_arg_ == nullptr && known) {
    first_arg_ = arg.name;
    device_ = device;
  } else if (!known || device != device_) {
    const std::string found = device_name(type, tensor);
    check(first_arg_ != nullptr, op_, ": ", arg, " is on ", found,
          ", expected cpu or a CUDA device. Move it there.");
    check(false, op_, ": ", arg, " is on ", found, ", expected ", to_string(device_), " (where ",
          first_arg_, " is). All tensors of a call must be on one device: move it there.");
  }
}

DType Arguments::check_usable(const ArgName& arg, const StableTensor& tensor) {
  check(tensor.defined(), op_, ": ", arg, " is an undefined tensor.");
  check_device(arg, tensor);
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

Tensor Arguments::view(const StableTensor& tensor, DType dtype, void* data) const {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  return Tensor(data, dtype, {sizes.data(), sizes.size()}, {strides.data(), strides.size()},
                device_);
}

Tensor Arguments::input(ArgName arg, const StableTensor& tensor) {
  const DType dtype = check_usable(arg, tensor);
  // The library's Tensor has no const form; what is passed as an input is only read.
  return view(tensor, dtype, const_cast<void*>(tensor.const_data_ptr()));
}

Tensor Arguments::input(ArgName arg, const OptionalTensor& tensor) {
  return tensor ? input(arg, *tensor) : Tensor();
}

std::vector<Tensor> Arguments::inputs(const char* arg, const std::vector<StableTensor>& tensors) {
  std::vector<Tensor> views;
  views.reserve(tensors.size());
  for (const StableTensor& tensor : tensors) {
    views.push_back(input(ArgName(arg, views.size()), tensor));
  }
  return views;
}

Tensor Arguments::output(ArgName arg, const StableTensor& tensor) {
  const DType dtype = check_usable(arg, tensor);
  return view(tensor, dtype, tensor.mutable_data_ptr());
}

Tensor Arguments::output(ArgName arg, const OptionalTensor& tensor) {
  return tensor ? output(arg, *tensor) : Tensor();
}

DType dtype_of(const char* op, const ArgName& arg, ScalarType type) {
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

int int_of(const char* op, const char* arg, std::int64_t value) {
  check(value >= 0 && value <= std::numeric_limits<int>::max(), op, ": ", arg, " is ", value,
        ", expected 0 to ", std::numeric_limits<int>::max(), ".");
  return static_cast<int>(value);
}

}  // namespace hpcattn::torch_ops
