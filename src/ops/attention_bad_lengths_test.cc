// SPDX-License-Identifier: Apache-2.0
// Wrong lengths, page ids and shared memory, and all that packed_attention refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "src/testing/attention_refusal.h"

namespace hpcattn {
namespace {

using namespace testkit;  // NOLINT: the words of these tests

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

/// An output laid over the memory of something that is read.
Tensor over(const Tensor& memory, const Tensor& output) {
  return Tensor(memory.data(), output.dtype(), output.sizes(), output.strides());
}

TEST(AttentionBadInput, OutputsThatShareMemoryWithInputs) {
  const std::vector<Row<Paged>> rows = {
      {"out shares memory with q", [](Paged& a) { a.out = a.q; }},
      {"lse shares memory with q", [](Paged& a) { a.lse = over(a.q, a.lse); }},
      {"lse and out share memory", [](Paged& a) { a.lse = a.out.select(2, 0); }},
      {"shares memory with k_cache", [](Paged& a) { a.out = over(a.k_cache, a.out); }},
      {"shares memory with v_cache", [](Paged& a) { a.out = over(a.v_cache, a.out); }},
      {"lse shares memory with kv_lens", [](Paged& a) { a.lse = over(a.kv_lens, a.lse); }},
      {"lse shares memory with cu_seqlens_q",
       [](Paged& a) { a.lse = over(a.cu_seqlens_q, a.lse); }},
      {"out shares memory with page_table", [](Paged& a) { a.out = over(a.page_table, a.out); }},
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
