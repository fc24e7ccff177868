// SPDX-License-Identifier: Apache-2.0
#include "src/ops/support.h"

#include <algorithm>
#include <array>

namespace hpcattn::ops {
namespace {

constexpr std::array<std::int64_t, 6> kHeadDims{64, 80, 96, 128, 192, 256};
constexpr std::array<std::int64_t, 5> kHopperPageSizes{16, 32, 64, 128, 256};

constexpr DType kF32 = DType::kFloat32;
constexpr DType kF16 = DType::kFloat16;
constexpr DType kBF16 = DType::kBFloat16;
constexpr DType kE4M3 = DType::kFloat8E4M3;
constexpr DType kE5M2 = DType::kFloat8E5M2;

constexpr std::array<DType, 4> kQueryDTypes{kF32, kF16, kBF16, kE4M3};

constexpr std::array<DType, 3> kKvOfF32{kF32, kE4M3, kE5M2};
constexpr std::array<DType, 3> kKvOfF16{kF16, kE4M3, kE5M2};
constexpr std::array<DType, 3> kKvOfBF16{kBF16, kE4M3, kE5M2};
constexpr std::array<DType, 2> kKvOfFp8{kE4M3, kE5M2};

constexpr std::array<DType, 2> kOutOfF32{kF32, kE4M3};
constexpr std::array<DType, 2> kOutOfF16{kF16, kE4M3};
constexpr std::array<DType, 2> kOutOfBF16{kBF16, kE4M3};
constexpr std::array<DType, 4> kOutOfFp8{kF32, kF16, kBF16, kE4M3};

constexpr std::array<AttentionDTypes, 4> kAttention{{
    {.q = kF32, .kv = kKvOfF32, .out = kOutOfF32},
    {.q = kF16, .kv = kKvOfF16, .out = kOutOfF16},
    {.q = kBF16, .kv = kKvOfBF16, .out = kOutOfBF16},
    {.q = kE4M3, .kv = kKvOfFp8, .out = kOutOfFp8},
}};

template <typename T>
bool contains(std::span<const T> values, T value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

const AttentionDTypes* row_of(DType q) {
  for (const AttentionDTypes& row : kAttention) {
    if (row.q == q) return &row;
  }
  return nullptr;
}

std::string text_of(std::int64_t value) { return std::to_string(value); }
std::string text_of(DType dtype) { return std::string(name(dtype)); }
std::string text_of(std::string_view word) { return std::string(word); }

template <typename T>
std::string join(std::span<const T> values) {
  std::string text;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text += i + 1 == values.size() ? " or " : ", ";
    text += text_of(values[i]);
  }
  return text;
}

}  // namespace

std::string join_or(std::span<const std::int64_t> values) { return join(values); }
std::string join_or(std::span<const DType> dtypes) { return join(dtypes); }
std::string join_or(std::span<const std::string_view> words) { return join(words); }

std::span<const std::int64_t> supported_head_dims() { return kHeadDims; }

bool head_dim_supported(std::int64_t head_dim) { return contains(supported_head_dims(), head_dim); }

std::string supported_head_dims_text() { return join_or(supported_head_dims()); }

bool page_size_supported(std::int64_t page_size) {
  return page_size > 0 && page_size % kPageSizeMultiple == 0;
}

std::string supported_page_sizes_text() {
  return "a multiple of " + std::to_string(kPageSizeMultiple);
}

std::span<const std::int64_t> hopper_page_sizes() { return kHopperPageSizes; }

std::span<const AttentionDTypes> attention_dtype_table() { return kAttention; }

bool attention_kv_dtype_supported(DType q, DType kv) {
  const AttentionDTypes* row = row_of(q);
  return row != nullptr && contains(row->kv, kv);
}

bool attention_dtypes_supported(DType q, DType kv, DType out) {
  return attention_kv_dtype_supported(q, kv) && contains(row_of(q)->out, out);
}

std::string attention_dtypes_text(DType q) {
  const AttentionDTypes* row = row_of(q);
  if (row == nullptr) return "q " + join_or(supported_query_dtypes());
  return "with a " + text_of(q) + " q: K and V " + join_or(row->kv) + ", out " + join_or(row->out);
}

bool store_dtypes_supported(DType k, DType cache) {
  return is_wide_float(k) && (cache == k || is_fp8(cache));
}

std::string store_dtypes_text(DType k) {
  if (!is_wide_float(k)) return "k and v " + join_or(supported_activation_dtypes());
  return "with a " + text_of(k) + " k: a cache of " + join_or(row_of(k)->kv);
}

std::span<const DType> supported_query_dtypes() { return kQueryDTypes; }

// The float8 row is the last one of the table.
std::span<const DType> supported_activation_dtypes() {
  return supported_query_dtypes().first(kQueryDTypes.size() - 1);
}

}  // namespace hpcattn::ops
