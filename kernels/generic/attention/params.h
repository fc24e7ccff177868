// SPDX-License-Identifier: Apache-2.0
// What a launch of the generic attention kernel passes. Strides count
// elements.
#pragma once

#include <cstdint>

#include "hpcattn/dtype_id.h"
#include "kernels/tile/fast_divide.h"
#include "kernels/tile/fault.h"
#include "src/plan/device_layout.h"
#include "src/plan/rows.h"

namespace hpcattn {

/// Where results of rows go: out [num_tokens, num_q_heads, head_dim], lse [num_tokens,
/// num_q_heads].
struct AttentionOutput {
  void* out = nullptr;
  float* lse = nullptr;  // or null
  std::int64_t out_token = 0;
  std::int64_t out_head = 0;
  std::int64_t lse_token = 0;
  std::int64_t lse_head = 0;
  DType out_dtype = DType::kBFloat16;
  bool out_pairs = false;    // two neighbouring elements may be stored at once
  bool out_vectors = false;  // rows start at multiples of 16 bytes
  DType sink_dtype = DType::kFloat32;
  const void* sinks = nullptr;  // [num_q_heads], or null
  std::int64_t sink_stride = 0;
  const float* v_scale = nullptr;    // [1] or [num_kv_heads], or null
  std::int64_t v_scale_stride = 0;   // 0: one for all heads
  const float* out_scale = nullptr;  // [1], or null
};

struct AttentionParams {
  const void* q = nullptr;  // [num_tokens, num_q_heads, head_dim]
  const void* k = nullptr;  // [num_pages, page_size, num_kv_heads, head_dim], or without the first
  const void* v = nullptr;  // two dims [num_kv_tokens, ..]
  std::int64_t q_token = 0;
  std::int64_t q_head = 0;
  std::int64_t k_page = 0;
  std::int64_t k_token = 0;
  std::int64_t k_head = 0;
  std::int64_t v_page = 0;
  std::int64_t v_token = 0;
  std::int64_t v_head = 0;
  bool q_vectors = false;  // rows of q start at multiples of 16 bytes

  const std::int32_t* page_table = nullptr;  // [num_requests, max_pages]; null: packed K and V
  std::int64_t table_request = 0;
  std::int64_t table_page = 0;
  const std::int32_t* cu_seqlens_k = nullptr;  // [num_requests + 1], packed
  std::int64_t cu_k_stride = 0;
  const std::int32_t* kv_lens =
      nullptr;  // [num_requests], paged; the plan must have been made of it
  std::int64_t kv_lens_stride = 0;
  std::int64_t num_pages = 0;
  FastDivide page_size;

  FastDivide group{1};  // query heads of a KV head
  plan::Mask mask;
  float scale = 1.0F;
  float softcap = 0.0F;
  const float* alibi_slopes = nullptr;  // [num_q_heads]
  std::int64_t alibi_stride = 0;
  const float* q_scale = nullptr;    // [1], [num_tokens, num_q_heads], or by request
  bool q_scale_by_request = false;   // tokens count from their request's first
  std::int64_t q_scale_request = 0;  // 0, as the next two: one for all
  std::int64_t q_scale_token = 0;
  std::int64_t q_scale_head = 0;
  const float* k_scale = nullptr;
  std::int64_t k_scale_stride = 0;

  const std::int32_t* plan = nullptr;  // null: tasks are whole tiles (sm90/prefill)
  plan::DeviceLayout layout;
  plan::Header group_header;  // the group fields that the plan's header must have

  float* partial_out = nullptr;  // [partial rows, head_dim]
  float* partial_lse = nullptr;  // [partial rows], log2
  std::int64_t partial_rows = 0;
  std::uint32_t call_id = 0;  // no two calls that may run at once have the same
  AttentionOutput output;
  std::int32_t num_q_heads = 1;
  std::int64_t num_tokens = 0;  // rows of out; those past cu_seqlens_q's end become 0
  const std::int32_t* cu_seqlens_q = nullptr;
  std::int64_t cu_q_stride = 0;
  Fault* fault = nullptr;
};

}  // namespace hpcattn
