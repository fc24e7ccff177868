// SPDX-License-Identifier: Apache-2.0
// For tests of refused attention calls: arguments spoiled in one way, and what must come of it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "hpcattn/error.h"
#include "src/testing/attention_case_list.h"

namespace hpcattn::testkit {

inline Tensor on_device(const Tensor& t, int index = 0) {
  return {t.data(), t.dtype(), t.sizes(), t.strides(), {DeviceType::kCuda, index}};
}

inline Tensor as_dtype(const Tensor& t, DType dtype) {
  return {t.data(), dtype, t.sizes(), t.strides()};
}

inline Tensor with_stride(const Tensor& t, int dim, std::int64_t stride) {
  std::vector<std::int64_t> strides(t.strides().begin(), t.strides().end());
  strides[static_cast<std::size_t>(dim)] = stride;
  return {t.data(), t.dtype(), t.sizes(), strides};
}

inline Tensor with_size(const Tensor& t, int dim, std::int64_t size) {
  std::vector<std::int64_t> sizes(t.sizes().begin(), t.sizes().end());
  sizes[static_cast<std::size_t>(dim)] = size;
  return {t.data(), t.dtype(), sizes, t.strides()};
}

inline AttentionCase base_case(const DTypes& dtypes = all_dtypes()[0]) {
  AttentionCase c;
  c.q_lens = {1, 5, 3};
  c.kv_lens = {33, 20, 40};
  set_dtypes(c, dtypes);
  return c;
}

template <typename Args>
void call(const Args& args) {
  if constexpr (std::is_same_v<Args, PagedAttentionArgs>) {
    paged_attention(args);
  } else {
    packed_attention(args);
  }
}

/// Expects `Refusal` with this text in it, and outputs as they were.
template <typename Refusal, typename Args>
void expect_refused(const AttentionBatch& batch, const Args& args, const std::string& text) {
  SCOPED_TRACE(text);
  const std::vector<std::uint8_t> out = batch.out().bytes();
  const std::vector<std::uint8_t> lse = batch.lse().bytes();
  try {
    call(args);
    ADD_FAILURE() << "was accepted";
  } catch (const Refusal& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  } catch (const Error& error) {
    ADD_FAILURE() << "another kind of error: " << error.what();
  }
  EXPECT_EQ(batch.out().bytes(), out);
  EXPECT_EQ(batch.lse().bytes(), lse);
  EXPECT_EQ(batch.check_surroundings(), "");
}

template <typename Args>
struct Row {
  const char* text;
  std::function<void(Args&)> spoil;
};

template <typename Refusal, typename Args>
void expect_each_refused(const std::vector<Row<Args>>& rows, const DTypes& dtypes) {
  for (const Row<Args>& row : rows) {
    const AttentionBatch batch(base_case(dtypes));
    Args args;
    if constexpr (std::is_same_v<Args, PagedAttentionArgs>) {
      args = batch.paged();
    } else {
      args = batch.packed();
    }
    row.spoil(args);
    expect_refused<Refusal>(batch, args, row.text);
  }
}

using Paged = PagedAttentionArgs;
using Packed = PackedAttentionArgs;

inline const DTypes kFloats = {DType::kFloat32, DType::kFloat32, DType::kFloat32};
inline const DTypes kFp8 = {DType::kFloat8E4M3, DType::kFloat8E4M3, DType::kFloat8E4M3};

}  // namespace hpcattn::testkit
