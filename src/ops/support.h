// SPDX-License-Identifier: Apache-2.0
// The one table of what the library supports. Operators' checks, the backend's capability queries
// and refusals, `explain` and the docs' test read it, so they can not disagree.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "hpcattn/dtype.h"

namespace hpcattn::ops {

/// Head dims of attention, ascending.
std::span<const std::int64_t> supported_head_dims();
bool head_dim_supported(std::int64_t head_dim);
/// "64, 80, 96, 128, 192 or 256".
std::string supported_head_dims_text();

/// Tokens of a page: any multiple of this.
inline constexpr std::int64_t kPageSizeMultiple = 8;
bool page_size_supported(std::int64_t page_size);
/// "a multiple of 8".
std::string supported_page_sizes_text();
/// Page sizes that Hopper's tensor copies take whole, ascending.
std::span<const std::int64_t> hopper_page_sizes();

/// One row for each dtype of q: what may go with it.
struct AttentionDTypes {
  DType q;
  std::span<const DType> kv;   // of K and V, which are alike
  std::span<const DType> out;  // float8 with out_scale
};
std::span<const AttentionDTypes> attention_dtype_table();

/// q, K and V (alike) and out of paged_attention and packed_attention.
bool attention_dtypes_supported(DType q, DType kv, DType out);
/// The same without asking about out.
bool attention_kv_dtype_supported(DType q, DType kv);
/// What goes with this q: "with a bfloat16 q: K and V bfloat16, float8_e4m3 or float8_e5m2, out
/// bfloat16 or float8_e4m3"; for a dtype that q can not have, which it can have.
std::string attention_dtypes_text(DType q);

/// k and v as given, and the cache that they are written to.
bool store_dtypes_supported(DType k, DType cache);
/// As attention_dtypes_text, for a store.
std::string store_dtypes_text(DType k);

/// Dtypes that q can have, and that activations of a model can have (q without float8).
std::span<const DType> supported_query_dtypes();
std::span<const DType> supported_activation_dtypes();

/// "a, b or c".
std::string join_or(std::span<const std::int64_t> values);
std::string join_or(std::span<const DType> dtypes);
std::string join_or(std::span<const std::string_view> words);

}  // namespace hpcattn::ops
