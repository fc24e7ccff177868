// SPDX-License-Identifier: Apache-2.0
// Whether tensors share memory. Views of one packed qkv, or K and V interleaved in one pool, lie
// within each other's address range and share nothing, so ranges alone do not tell.
#pragma once

#include <span>
#include <string_view>

#include "hpcattn/tensor.h"

namespace hpcattn::ops {

/// Some byte belongs to an entry of both. True also where finding out would take too long, which no
/// layout of nested strides does. Throws InvalidArgument where strides leave the address space.
bool may_share_memory(const Tensor& a, const Tensor& b);

/// Same memory, dtype, sizes and strides: an operator may work in place on it.
bool same_view(const Tensor& a, const Tensor& b);

struct NamedTensor {
  std::string_view name;
  const Tensor* tensor;  // may be not given
};

struct InPlacePair {
  const Tensor* output;
  const Tensor* input;
};

/// Outputs share memory neither with each other nor with an input; entries of one output lie apart.
/// `in_place` pairs an output with the input that it may be. Throws InvalidArgument.
void check_outputs_apart(std::string_view op, std::span<const NamedTensor> outputs,
                         std::span<const NamedTensor> inputs,
                         std::span<const InPlacePair> in_place = {});

}  // namespace hpcattn::ops
