// SPDX-License-Identifier: Apache-2.0
// Each way to call attention wrongly: the message says what came and what is expected, and nothing
// was written.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "hpcattn/error.h"
#include "src/testing/attention_case_list.h"
#include "src/testing/attention_check.h"

namespace hpcattn {
namespace {

using testkit::AttentionBatch;
using testkit::AttentionCase;
using testkit::GuardedTensor;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Tensor on_device(const Tensor& t, int index = 0) {
  return {t.data(), t.dtype(), t.sizes(), t.strides(), {DeviceType::kCuda, index}};
}

Tensor as_dtype(const Tensor& t, DType dtype) { return {t.data(), dtype, t.sizes(), t.strides()}; }

Tensor with_stride(const Tensor& t, int dim, std::int64_t stride) {
  std::vector<std::int64_t> strides(t.strides().begin(), t.strides().end());
  strides[static_cast<std::size_t>(dim)] = stride;
  return {t.data(), t.dtype(), t.sizes(), strides};
}

Tensor with_size(const Tensor& t, int dim, std::int64_t size) {
  std::vector<std::int64_t> sizes(t.sizes().begin(), t.sizes().end());
  sizes[static_cast<std::size_t>(dim)] = size;
  return {t.data(), t.dtype(), sizes, t.strides()};
}

AttentionCase base_case(const testkit::DTypes& dtypes = testkit::all_dtypes()[0]) {
  AttentionCase c;
  c.q_lens = {1, 5, 3};
  c.kv_lens = {33, 20, 40};
  testkit::set_dtypes(c, dtypes);
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
void expect_each_refused(const std::vector<Row<Args>>& rows, const testkit::DTypes& dtypes) {
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

const testkit::DTypes kFloats = {DType::kFloat32, DType::kFloat32, DType::kFloat32};
const testkit::DTypes kFp8 = {DType::kFloat8E4M3, DType::kFloat8E4M3, DType::kFloat8E4M3};

TEST(AttentionBadInput, RankSizeAndStride) {
  const std::vector<Row<Paged>> rows = {
      {"q is not given", [](Paged& a) { a.q = {}; }},
      {"q is float32[11, 64] on cpu, expected shape [any, any, any]",
       [](Paged& a) { a.q = a.q.select(1, 0); }},
      {"q is float32[11, 4, 64] on cpu with a null pointer",
       [](Paged& a) { a.q = Tensor(nullptr, a.q.dtype(), a.q.sizes(), a.q.strides()); }},
      {"q has stride 2 in its last dim", [](Paged& a) { a.q = with_stride(a.q, 2, 2); }},
      {"q has no heads",
       [](Paged& a) {
         a.q = a.q.slice(1, 0, 0);
         a.out = a.out.slice(1, 0, 0);
         a.lse = a.lse.slice(1, 0, 0);
       }},
      {"k_cache is not given", [](Paged& a) { a.k_cache = {}; }},
      {"k_cache is float32[", [](Paged& a) { a.k_cache = a.k_cache.select(1, 0); }},
      {"k_cache has stride 2 in its last dim",
       [](Paged& a) { a.k_cache = with_stride(a.k_cache, 3, 2); }},
      {"v_cache has stride 2 in its last dim",
       [](Paged& a) { a.v_cache = with_stride(a.v_cache, 3, 2); }},
      {"v_cache is float32[", [](Paged& a) { a.v_cache = a.v_cache.slice(0, 0, 3); }},
      {"v_cache is float32[", [](Paged& a) { a.v_cache = a.v_cache.slice(2, 0, 1); }},
      {"k_cache is float32[", [](Paged& a) { a.k_cache = with_size(a.k_cache, 3, 32); }},
      {"page_table is int32[2, ", [](Paged& a) { a.page_table = a.page_table.slice(0, 0, 2); }},
      {"page_table is int32[3] on cpu", [](Paged& a) { a.page_table = a.page_table.select(1, 0); }},
      {"page_table is not given", [](Paged& a) { a.page_table = {}; }},
      {"cu_seqlens_q is int32[3] on cpu, expected shape [4]",
       [](Paged& a) { a.cu_seqlens_q = a.cu_seqlens_q.slice(0, 0, 3); }},
      {"cu_seqlens_q is not given", [](Paged& a) { a.cu_seqlens_q = {}; }},
      {"kv_lens is not given", [](Paged& a) { a.kv_lens = {}; }},
      {"kv_lens is int32[3, ", [](Paged& a) { a.kv_lens = a.page_table; }},
      {"out is not given", [](Paged& a) { a.out = {}; }},
      {"out is float32[11, 4, 32]", [](Paged& a) { a.out = a.out.slice(2, 0, 32); }},
      {"out is float32[10, 4, 64]", [](Paged& a) { a.out = a.out.slice(0, 0, 10); }},
      {"out has stride 2 in its last dim", [](Paged& a) { a.out = with_stride(a.out, 2, 2); }},
      {"out is written and its strides lay entries over each other",
       [](Paged& a) { a.out = with_stride(a.out, 1, 0); }},
      {"lse is float32[11] on cpu, expected shape [11, 4]",
       [](Paged& a) { a.lse = a.lse.select(1, 0); }},
      {"lse is written and its strides lay entries over each other",
       [](Paged& a) { a.lse = with_stride(a.lse, 0, 0); }},
      {"sinks is float32[3] on cpu, expected shape [4]",
       [](Paged& a) { a.options.sinks = a.lse.select(0, 0).slice(0, 0, 3); }},
      {"alibi_slopes is float32[3] on cpu, expected shape [4]",
       [](Paged& a) { a.options.alibi_slopes = a.lse.select(0, 0).slice(0, 0, 3); }},
  };
  expect_each_refused<InvalidArgument>(rows, kFloats);
}

TEST(AttentionBadInput, HeadsAreNotDivisible) {
  expect_each_refused<InvalidArgument>(
      std::vector<Row<Paged>>{{"q has 3 heads and k_cache has 2",
                               [](Paged& a) {
                                 a.q = a.q.slice(1, 0, 3);
                                 a.out = a.out.slice(1, 0, 3);
                                 a.lse = a.lse.slice(1, 0, 3);
                               }},
                              {"k_cache has 0",
                               [](Paged& a) {
                                 a.k_cache = a.k_cache.slice(2, 0, 0);
                                 a.v_cache = a.v_cache.slice(2, 0, 0);
                               }}},
      kFloats);
}

TEST(AttentionBadInput, HeadDimAndPageSizeThatAreNotSupported) {
  expect_each_refused<Unsupported>(
      std::vector<Row<Paged>>{{"head_dim is 48, supported are 64, 80, 96, 128, 192 or 256",
                               [](Paged& a) {
                                 a.q = a.q.slice(2, 0, 48);
                                 a.k_cache = a.k_cache.slice(3, 0, 48);
                                 a.v_cache = a.v_cache.slice(3, 0, 48);
                                 a.out = a.out.slice(2, 0, 48);
                               }},
                              {"page_size is 12, expected a multiple of 8",
                               [](Paged& a) {
                                 a.k_cache = a.k_cache.slice(1, 0, 12);
                                 a.v_cache = a.v_cache.slice(1, 0, 12);
                               }},
                              {"page_size is 0",
                               [](Paged& a) {
                                 a.k_cache = a.k_cache.slice(1, 0, 0);
                                 a.v_cache = a.v_cache.slice(1, 0, 0);
                               }}},
      kFloats);
}

TEST(AttentionBadInput, DTypes) {
  const std::vector<Row<Paged>> invalid = {
      {"k_cache has dtype float32 and v_cache int32, expected one dtype",
       [](Paged& a) { a.v_cache = as_dtype(a.v_cache, DType::kInt32); }},
      {"page_table has dtype float32, expected int32",
       [](Paged& a) { a.page_table = as_dtype(a.page_table, DType::kFloat32); }},
      {"cu_seqlens_q has dtype int64, expected int32",
       [](Paged& a) { a.cu_seqlens_q = as_dtype(a.cu_seqlens_q, DType::kInt64); }},
      {"kv_lens has dtype uint8, expected int32",
       [](Paged& a) { a.kv_lens = as_dtype(a.kv_lens, DType::kUInt8); }},
      {"lse has dtype int32, expected float32",
       [](Paged& a) { a.lse = as_dtype(a.lse, DType::kInt32); }},
      {"sinks has dtype int32, expected float32 or float16 or bfloat16",
       [](Paged& a) { a.options.sinks = as_dtype(a.lse.select(0, 0), DType::kInt32); }},
      {"alibi_slopes has dtype float16, expected float32",
       [](Paged& a) { a.options.alibi_slopes = as_dtype(a.lse.select(0, 0), DType::kFloat16); }},
  };
  expect_each_refused<InvalidArgument>(invalid, kFloats);
  const std::vector<Row<Paged>> unsupported = {
      {"q has dtype int32", [](Paged& a) { a.q = as_dtype(a.q, DType::kInt32); }},
      {"q has dtype float8_e5m2", [](Paged& a) { a.q = as_dtype(a.q, DType::kFloat8E5M2); }},
      {"out float16; supported are: with a float32 q",
       [](Paged& a) { a.out = as_dtype(a.out, DType::kFloat16); }},
      {"k_cache float16, out float32",
       [](Paged& a) {
         a.k_cache = as_dtype(a.k_cache, DType::kFloat16);
         a.v_cache = as_dtype(a.v_cache, DType::kFloat16);
       }},
  };
  expect_each_refused<Unsupported>(unsupported, kFloats);
}

TEST(AttentionBadInput, Devices) {
  const std::vector<Row<Paged>> rows = {
      {"k_cache is on cuda:0, expected cpu", [](Paged& a) { a.k_cache = on_device(a.k_cache); }},
      {"v_cache is on cuda:1, expected cpu", [](Paged& a) { a.v_cache = on_device(a.v_cache, 1); }},
      {"page_table is on cuda:0", [](Paged& a) { a.page_table = on_device(a.page_table); }},
      {"cu_seqlens_q is on cuda:0", [](Paged& a) { a.cu_seqlens_q = on_device(a.cu_seqlens_q); }},
      {"kv_lens is on cuda:0", [](Paged& a) { a.kv_lens = on_device(a.kv_lens); }},
      {"out is on cuda:0", [](Paged& a) { a.out = on_device(a.out); }},
      {"lse is on cuda:0", [](Paged& a) { a.lse = on_device(a.lse); }},
  };
  expect_each_refused<InvalidArgument>(rows, kFloats);
  expect_each_refused<Unsupported>(
      std::vector<Row<Paged>>{{"q is on cuda:0", [](Paged& a) { a.q = on_device(a.q); }}}, kFloats);
}

TEST(AttentionBadInput, ScalesOptionsAndWindow) {
  static float bad_value = 0.0F;
  const auto scalar = [](float value) {
    bad_value = value;
    return Tensor::contiguous(&bad_value, DType::kFloat32, {1});
  };
  const std::vector<Row<Paged>> rows = {
      {"scale is nan", [](Paged& a) { a.options.scale = std::nan(""); }},
      {"scale is nan", [](Paged& a) { a.options = AttentionOptions{}; }},
      {"scale is inf", [](Paged& a) { a.options.scale = INFINITY; }},
      {"window is 0, expected 1 or more", [](Paged& a) { a.options.window = 0; }},
      {"window is -5", [](Paged& a) { a.options.window = -5; }},
      {"softcap is -1", [](Paged& a) { a.options.softcap = -1.0; }},
      {"softcap is nan", [](Paged& a) { a.options.softcap = std::nan(""); }},
      {"softcap is inf", [](Paged& a) { a.options.softcap = INFINITY; }},
      {"q_scale is given and q is float32", [&](Paged& a) { a.options.q_scale = scalar(1.0F); }},
      {"k_scale is given and k_cache is float32",
       [&](Paged& a) { a.options.k_scale = scalar(1.0F); }},
      {"v_scale is given and v_cache is float32",
       [&](Paged& a) { a.options.v_scale = scalar(1.0F); }},
      {"out_scale is given and out is float32",
       [&](Paged& a) { a.options.out_scale = scalar(1.0F); }},
  };
  expect_each_refused<InvalidArgument>(rows, kFloats);
  const AttentionBatch batch(base_case());
  for (float value : {kNan, std::numeric_limits<float>::infinity()}) {
    const GuardedTensor sinks = GuardedTensor::of_floats({0.5, value, 0.1, 0.2});
    Paged args = batch.paged();
    args.options.sinks = sinks;
    expect_refused<InvalidArgument>(batch, args, "sinks[1] is ");
  }
}

TEST(AttentionBadInput, ScalesOfFp8) {
  static float bad_value = 0.0F;
  const auto scalar = [](float value) {
    bad_value = value;
    return Tensor::contiguous(&bad_value, DType::kFloat32, {1});
  };
  const std::vector<Row<Paged>> rows = {
      {"q_scale is not given, expected float32 [1] or [11, 4]",
       [](Paged& a) { a.options.q_scale = {}; }},
      {"k_scale is not given, expected float32 [1] or [2]",
       [](Paged& a) { a.options.k_scale = {}; }},
      {"v_scale is not given", [](Paged& a) { a.options.v_scale = {}; }},
      {"out_scale is not given", [](Paged& a) { a.options.out_scale = {}; }},
      {"q_scale is float32[10, 4]",
       [](Paged& a) { a.options.q_scale = a.options.q_scale.slice(0, 0, 10); }},
      {"k_scale is float32[11, 4]", [](Paged& a) { a.options.k_scale = a.options.q_scale; }},
      {"out_scale is float32[2] on cpu", [](Paged& a) { a.options.out_scale = a.options.k_scale; }},
      {"k_scale[0] is 0, expected a finite scale above 0",
       [&](Paged& a) { a.options.k_scale = scalar(0.0F); }},
      {"v_scale[0] is nan", [&](Paged& a) { a.options.v_scale = scalar(kNan); }},
      {"out_scale[0] is -1", [&](Paged& a) { a.options.out_scale = scalar(-1.0F); }},
      {"k_scale has dtype int32, expected float32",
       [](Paged& a) { a.options.k_scale = as_dtype(a.options.k_scale, DType::kInt32); }},
      {"q_scale is float32[11, 4] on cpu with a null pointer",
       [](Paged& a) {
         const Tensor& scale = a.options.q_scale;
         a.options.q_scale = Tensor(nullptr, scale.dtype(), scale.sizes(), scale.strides());
       }},
      {"q_scale has dtype int32, expected float32",
       [](Paged& a) { a.options.q_scale = as_dtype(a.options.q_scale, DType::kInt32); }},
      {"q_scale is on cuda:0", [](Paged& a) { a.options.q_scale = on_device(a.options.q_scale); }},
      {"k_scale is on cuda:0", [](Paged& a) { a.options.k_scale = on_device(a.options.k_scale); }},
  };
  expect_each_refused<InvalidArgument>(rows, kFp8);
}

TEST(AttentionBadInput, LengthsAndPageIds) {
  struct Values {
    const char* text;
    std::vector<std::int32_t> cu_seqlens_q;
    std::vector<std::int32_t> kv_lens;
  };
  const std::int32_t lowest = std::numeric_limits<std::int32_t>::min();
  const std::int32_t highest = std::numeric_limits<std::int32_t>::max();
  const std::vector<Values> rows = {
      {"cu_seqlens_q[0] is 1, expected 0", {1, 1, 6, 9}, {33, 20, 40}},
      {"cu_seqlens_q[2] is 0, below the 1 before it", {0, 1, 0, 9}, {33, 20, 40}},
      {"cu_seqlens_q[1] is -1", {0, -1, 6, 9}, {33, 20, 40}},
      {"cu_seqlens_q ends at 12, over the 11 of tokens in q", {0, 1, 6, 12}, {33, 20, 40}},
      {"cu_seqlens_q ends at 2147483647", {0, 1, 6, highest}, {33, 20, 40}},
      {"kv_lens[1] is -1, expected 0 or more", {0, 1, 6, 9}, {33, -1, 40}},
      {"kv_lens[0] is -2147483648", {0, 1, 6, 9}, {lowest, 20, 40}},
      {"kv_lens[2] is 2147483647, page_table holds", {0, 1, 6, 9}, {33, 20, highest}},
      {"kv_lens[2] is 113, page_table holds", {0, 1, 6, 9}, {33, 20, 113}},
      {"kv_lens[0] is 113, page_table holds", {0, 0, 6, 9}, {113, 20, 40}},  // of no query token
  };
  const AttentionBatch batch(base_case());
  for (const Values& row : rows) {
    const GuardedTensor ends = GuardedTensor::of_ints(row.cu_seqlens_q);
    const GuardedTensor lens = GuardedTensor::of_ints(row.kv_lens);
    Paged args = batch.paged();
    args.cu_seqlens_q = ends;
    args.kv_lens = lens;
    expect_refused<InvalidArgument>(batch, args, row.text);
  }
}

TEST(AttentionBadInput, PageIdsOutOfThePool) {
  for (bool causal : {true, false}) {
    for (std::optional<std::int64_t> window :
         {std::optional<std::int64_t>(), std::optional<std::int64_t>(64),
          std::optional<std::int64_t>(std::numeric_limits<std::int64_t>::max())}) {
      AttentionCase c = base_case();
      c.causal = causal;
      c.window = window;
      const AttentionBatch batch(c);
      const std::int64_t num_pages = batch.paged().k_cache.size(0);
      for (std::int32_t id :
           {static_cast<std::int32_t>(num_pages), -2, std::numeric_limits<std::int32_t>::max(),
            std::numeric_limits<std::int32_t>::min()}) {
        Paged args = batch.paged();
        GuardedTensor table(DType::kInt32, {3, args.page_table.size(1)});
        for (std::int64_t i = 0; i < args.page_table.num_elements(); ++i) {
          table.tensor().data_as<std::int32_t>()[i] = args.page_table.data_as<std::int32_t>()[i];
        }
        table.tensor().data_as<std::int32_t>()[2 * args.page_table.size(1) + 1] = id;
        args.page_table = table;
        expect_refused<InvalidArgument>(batch, args,
                                        "page_table[2, 1] is " + std::to_string(id) +
                                            ", expected a page id below " +
                                            std::to_string(num_pages));
      }
    }
  }
}

TEST(AttentionBadInput, OutputsThatShareMemoryWithInputs) {
  const std::vector<Row<Paged>> rows = {
      {"out shares memory with q", [](Paged& a) { a.out = a.q; }},
      {"shares memory with k_cache",
       [](Paged& a) {
         a.out = Tensor(a.k_cache.data(), a.out.dtype(), a.out.sizes(), a.out.strides());
       }},
      {"shares memory with v_cache",
       [](Paged& a) {
         a.out = Tensor(a.v_cache.data(), a.out.dtype(), a.out.sizes(), a.out.strides());
       }},
  };
  expect_each_refused<InvalidArgument>(rows, kFloats);
}

TEST(AttentionBadInput, Packed) {
  static const std::vector<std::int32_t> falling = {0, 33, 20, 93};
  static const std::vector<std::int32_t> overrun = {0, 33, 53, 94};
  static const std::vector<std::int32_t> late = {2, 33, 53, 93};
  const auto ends = [](const std::vector<std::int32_t>& values) {
    return Tensor::contiguous(const_cast<std::int32_t*>(values.data()), DType::kInt32,
                              {static_cast<std::int64_t>(values.size())});
  };
  const std::vector<Row<Packed>> rows = {
      {"q is float32[4, 64]", [](Packed& a) { a.q = a.q.select(0, 0); }},
      {"k is not given", [](Packed& a) { a.k = {}; }},
      {"k is float32[93, 64] on cpu", [](Packed& a) { a.k = a.k.select(1, 0); }},
      {"v is float32[92, 2, 64] on cpu, expected shape [93, 2, 64]",
       [](Packed& a) { a.v = a.v.slice(0, 0, 92); }},
      {"k has stride 2 in its last dim", [](Packed& a) { a.k = with_stride(a.k, 2, 2); }},
      {"k has dtype float32 and v int32", [](Packed& a) { a.v = as_dtype(a.v, DType::kInt32); }},
      {"q has 3 heads and k has 2",
       [](Packed& a) {
         a.q = a.q.slice(1, 0, 3);
         a.out = a.out.slice(1, 0, 3);
         a.lse = a.lse.slice(1, 0, 3);
       }},
      {"cu_seqlens_k is not given", [](Packed& a) { a.cu_seqlens_k = {}; }},
      {"cu_seqlens_k is int32[0] on cpu, expected one entry more",
       [](Packed& a) { a.cu_seqlens_k = a.cu_seqlens_k.slice(0, 0, 0); }},
      {"cu_seqlens_q is int32[4] on cpu, expected shape [3]",
       [](Packed& a) { a.cu_seqlens_k = a.cu_seqlens_k.slice(0, 0, 3); }},
      {"cu_seqlens_k has dtype int64, expected int32",
       [](Packed& a) { a.cu_seqlens_k = as_dtype(a.cu_seqlens_k, DType::kInt64); }},
      {"cu_seqlens_k[2] is 20, below the 33 before it",
       [&](Packed& a) { a.cu_seqlens_k = ends(falling); }},
      {"cu_seqlens_k ends at 94, over the 93 of tokens in k",
       [&](Packed& a) { a.cu_seqlens_k = ends(overrun); }},
      {"cu_seqlens_k[0] is 2, expected 0", [&](Packed& a) { a.cu_seqlens_k = ends(late); }},
      {"scale is nan", [](Packed& a) { a.options.scale = std::nan(""); }},
      {"window is 0", [](Packed& a) { a.options.window = 0; }},
      {"k_scale is given and k is float32",
       [](Packed& a) { a.options.k_scale = a.lse.select(0, 0); }},
      {"out shares memory with q", [](Packed& a) { a.out = a.q; }},
      {"k is on cuda:0", [](Packed& a) { a.k = on_device(a.k); }},
      {"cu_seqlens_k is on cuda:0", [](Packed& a) { a.cu_seqlens_k = on_device(a.cu_seqlens_k); }},
  };
  expect_each_refused<InvalidArgument>(rows, kFloats);
}

}  // namespace
}  // namespace hpcattn
