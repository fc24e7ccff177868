// SPDX-License-Identifier: Apache-2.0
// Pages of a KV cache as the copy engine of sm_90 and later takes them.
#pragma once

#include "hpcattn/tensor.h"
#include "kernels/ptx/tensor_copy.h"

namespace hpcattn::cuda {

/// Whether this driver can describe tensors at all.
bool has_tensor_maps();

/// Packed K or V [num_kv_tokens, num_kv_heads, head_dim] as a cache of one page.
Tensor as_one_page(const Tensor& packed);

/// Whether a cache [num_pages, page_size, num_kv_heads, head_dim] can be described: whole lines of
/// 128 or 64 bytes a row, strides that are multiples of 16 bytes and below 2^40.
bool tensor_map_takes(const Tensor& cache, int line_bytes = 128);

/// [pages][heads][lines][tokens of a page][line_bytes], in boxes of one or all lines of
/// `box_tokens` tokens of one head, swizzled by the length of a line. Throws DeviceError.
enum class BoxLines { kOne, kAll };
TensorMap page_map(const Tensor& cache, int box_tokens, BoxLines box_lines, int line_bytes = 128);

}  // namespace hpcattn::cuda
