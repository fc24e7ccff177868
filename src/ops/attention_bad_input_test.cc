// SPDX-License-Identifier: Apache-2.0
// Each way to call attention wrongly, but for lengths and ids: the message says what came and what
// is expected, and nothing was written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/testing/attention_refusal.h"

namespace hpcattn {
namespace {

using namespace testkit;  // NOLINT: the words of these tests

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

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
      std::vector<Row<Paged>>{
          {"q has dtype float32 on cuda:0", [](Paged& a) { a.q = on_device(a.q); }}},
      kFloats);
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
      {"q_scale is not given, expected float32 [1], [11, 4] or [3, 4, most query tokens",
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

TEST(AttentionBadInput, QueryScales) {
  const AttentionBatch batch(base_case(kFp8));
  const auto args_with = [&](GuardedTensor& scale, std::int64_t token, float value) {
    scale = GuardedTensor(DType::kFloat32, {11, 4});
    std::fill_n(scale.tensor().data_as<float>(), 44, 0.5F);
    scale.tensor().data_as<float>()[token * 4 + 3] = value;
    Paged args = batch.paged();
    args.options.q_scale = scale;
    return args;
  };
  GuardedTensor scale;
  expect_refused<InvalidArgument>(batch, args_with(scale, 8, kNan),
                                  "q_scale of token 8, head 3 is nan, expected a finite scale");
  expect_refused<InvalidArgument>(batch, args_with(scale, 0, -2.0F),
                                  "q_scale of token 0, head 3 is -2");
  paged_attention(args_with(scale, 9, kNan));  // of padding: nobody reads it
  Paged args = batch.paged();
  GuardedTensor by_request(DType::kFloat32, {args.kv_lens.size(0), 4, 2});
  std::fill_n(by_request.tensor().data_as<float>(), by_request.tensor().num_elements(), 1.0F);
  args.options.q_scale = by_request;
  expect_refused<InvalidArgument>(batch, args, "query tokens, and q_scale holds 2 of each");
}

}  // namespace
}  // namespace hpcattn
