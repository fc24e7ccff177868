// SPDX-License-Identifier: Apache-2.0
// Checks of tensor arguments that all operators share. `op` is the operator's name and `arg` the
// argument's; both begin the message.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "hpcattn/tensor.h"

namespace hpcattn::ops {

/// A size that the caller does not fix.
inline constexpr std::int64_t kAnySize = -1;

/// Given at all, with this rank and these sizes (kAnySize: any), with no null data for elements.
/// Throws InvalidArgument.
void check_shape(std::string_view op, std::string_view arg, const Tensor& tensor,
                 std::initializer_list<std::int64_t> sizes);

/// One of the dtypes. Throws InvalidArgument.
void check_dtype(std::string_view op, std::string_view arg, const Tensor& tensor,
                 std::initializer_list<DType> allowed);

/// The last dim has stride 1 (or size 1 or less). Throws InvalidArgument.
void check_last_contiguous(std::string_view op, std::string_view arg, const Tensor& tensor);

/// No two entries of an output share memory: no stride 0 over a size above 1. Throws
/// InvalidArgument.
void check_no_overlap(std::string_view op, std::string_view arg, const Tensor& tensor);

/// On `device`. Throws InvalidArgument.
void check_device(std::string_view op, std::string_view arg, const Tensor& tensor, Device device);

/// A float32 scale, [1] or [num_heads]; on the CPU every value finite and above zero.
void check_scale(std::string_view op, std::string_view arg, const Tensor& tensor, Device device,
                 std::int64_t num_heads);

/// cu_seqlens[num_requests + 1]: starts at 0, does not fall, ends at most at `limit`. CPU tensors
/// alone.
void check_cu_seqlens(std::string_view op, std::string_view arg, const Tensor& tensor,
                      std::int64_t limit, std::string_view limit_name);

/// Element [index...] of an int32 or int64 tensor on the CPU.
std::int64_t index_at(const Tensor& tensor, std::int64_t i);
std::int64_t index_at(const Tensor& tensor, std::int64_t i, std::int64_t j);

}  // namespace hpcattn::ops
