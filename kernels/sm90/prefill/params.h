// SPDX-License-Identifier: Apache-2.0
// What a launch of Hopper's prefill kernel passes.
#pragma once

#include "kernels/generic/attention/params.h"
#include "kernels/ptx/tensor_copy.h"

namespace hpcattn {

struct PrefillParams {
  AttentionParams attention;
  // [pages][heads][lines of 128 bytes][tokens of a page][128 bytes], box
  // [1][1][1][box_tokens][all]
  TensorMap k_map;
  TensorMap v_map;
};

}  // namespace hpcattn
