// SPDX-License-Identifier: Apache-2.0
// From the tensors of a call to what kernels/fused and kernels/merge are passed. A tensor that is
// not given becomes a view without data.
#pragma once

#include <string>

#include "hpcattn/tensor.h"
#include "kernels/fused/rope/params.h"
#include "kernels/fused/views.h"

namespace hpcattn::cuda {

/// Every piece of 8 elements of the last dim, counted from its start, lies where one access (of 16
/// bytes, or of the piece's fewer) takes it.
bool has_aligned_pieces(const Tensor& tensor);

/// [num_tokens, num_heads, head_dim]
RowsView rows_view(const Tensor& tensor);

/// [num_pages, page_size, num_heads, head_dim]
CacheView cache_view(const Tensor& tensor);

/// [n] or [n, m] of int32 or int64
IndexView index_view(const Tensor& tensor);

/// [1] or [num_heads]
ScaleView scale_view(const Tensor& tensor);

WeightView weight_view(const Tensor& tensor);

/// "hpcattn::DType::kBFloat16", as generated source writes it.
std::string source_name(DType dtype);

}  // namespace hpcattn::cuda
