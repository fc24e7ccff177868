// SPDX-License-Identifier: Apache-2.0
#include "src/ops/check_tensor.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "src/common/check.h"

namespace hpcattn::ops {
namespace {

std::string shape_text(std::initializer_list<std::int64_t> sizes) {
  std::string text = "[";
  for (std::int64_t size : sizes) {
    if (text.size() > 1) text += ", ";
    text += size == kAnySize ? std::string("any") : std::to_string(size);
  }
  return text + "]";
}

bool shape_matches(const Tensor& tensor, std::initializer_list<std::int64_t> sizes) {
  if (tensor.rank() != static_cast<int>(sizes.size())) return false;
  int dim = 0;
  for (std::int64_t size : sizes) {
    if (size != kAnySize && tensor.size(dim) != size) return false;
    ++dim;
  }
  return true;
}

}  // namespace

void check_shape(std::string_view op, std::string_view arg, const Tensor& tensor,
                 std::initializer_list<std::int64_t> sizes) {
  // Texts are made where something is wrong alone: they cost more than a call of one decode row.
  if (tensor.defined() && shape_matches(tensor, sizes) && tensor.data() != nullptr) return;
  const auto shape = [&] { return shape_text(sizes); };
  const auto found = [&] { return to_string(tensor); };
  check(tensor.defined(), op, ": ", arg, " is not given, expected a tensor ", shape, ".");
  check(shape_matches(tensor, sizes), op, ": ", arg, " is ", found, ", expected shape ", shape,
        ".");
  check(tensor.data() != nullptr || tensor.num_elements() == 0, op, ": ", arg, " is ", found,
        " with a null pointer, expected memory.");
}

void check_dtype(std::string_view op, std::string_view arg, const Tensor& tensor,
                 std::initializer_list<DType> allowed) {
  if (std::find(allowed.begin(), allowed.end(), tensor.dtype()) != allowed.end()) return;
  std::string names;
  for (DType dtype : allowed) {
    if (!names.empty()) names += " or ";
    names += name(dtype);
  }
  check(false, op, ": ", arg, " has dtype ", name(tensor.dtype()), ", expected ", names, ".");
}

void check_last_contiguous(std::string_view op, std::string_view arg, const Tensor& tensor) {
  check(tensor.size(-1) <= 1 || tensor.stride(-1) == 1, op, ": ", arg, " has stride ",
        tensor.stride(-1),
        " in its last dim, expected 1. Pass a tensor whose last dim is contiguous.");
}

void check_no_overlap(std::string_view op, std::string_view arg, const Tensor& tensor) {
  if (tensor.num_elements() == 0) return;
  for (int dim = 0; dim < tensor.rank(); ++dim) {
    check(tensor.size(dim) <= 1 || tensor.stride(dim) != 0, op, ": ", arg,
          " is written and has stride 0 ", "in dim ", dim, " of size ", tensor.size(dim),
          ", expected memory of its own for each entry.");
  }
}

void check_device(std::string_view op, std::string_view arg, const Tensor& tensor, Device device) {
  if (tensor.device() == device) return;
  throw InvalidArgument(message(op, ": ", arg, " is on ", to_string(tensor.device()), ", expected ",
                                to_string(device), " (where the first argument is)."));
}

void check_scale(std::string_view op, std::string_view arg, const Tensor& tensor, Device device,
                 std::int64_t num_heads) {
  const bool fits = tensor.defined() && tensor.rank() == 1 &&
                    (tensor.size(0) == 1 || tensor.size(0) == num_heads) &&
                    tensor.data() != nullptr;
  if (!fits) {
    throw InvalidArgument(message(op, ": ", arg, " is ", to_string(tensor),
                                  ", expected float32 [1] or [", num_heads, "]."));
  }
  check_dtype(op, arg, tensor, {DType::kFloat32});
  check_device(op, arg, tensor, device);
  if (device.type != DeviceType::kCpu) return;
  for (std::int64_t i = 0; i < tensor.size(0); ++i) {
    const float value = tensor.data_as<const float>()[i * tensor.stride(0)];
    check(std::isfinite(value) && value > 0.0F, op, ": ", arg, "[", i, "] is ", value,
          ", expected a finite scale above 0.");
  }
}

void check_cu_seqlens(std::string_view op, std::string_view arg, const Tensor& tensor,
                      std::int64_t limit, std::string_view limit_name) {
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.size(0); ++i) {
    const std::int64_t value = index_at(tensor, i);
    check(i > 0 || value == 0, op, ": ", arg, "[0] is ", value, ", expected 0.");
    check(value >= last, op, ": ", arg, "[", i, "] is ", value, ", below the ", last,
          " before it; cumulative lengths do not fall.");
    last = value;
  }
  check(last <= limit, op, ": ", arg, " ends at ", last, ", over the ", limit, " of ", limit_name,
        ".");
}

std::int64_t index_at(const Tensor& tensor, std::int64_t i) {
  const std::int64_t offset = i * tensor.stride(0);
  return tensor.dtype() == DType::kInt64 ? tensor.data_as<const std::int64_t>()[offset]
                                         : tensor.data_as<const std::int32_t>()[offset];
}

std::int64_t index_at(const Tensor& tensor, std::int64_t i, std::int64_t j) {
  const std::int64_t offset = i * tensor.stride(0) + j * tensor.stride(1);
  return tensor.dtype() == DType::kInt64 ? tensor.data_as<const std::int64_t>()[offset]
                                         : tensor.data_as<const std::int32_t>()[offset];
}

}  // namespace hpcattn::ops
