// SPDX-License-Identifier: Apache-2.0
// What a launch of rope_norm_store_kv's kernel passes. Views without data: not given.
#pragma once

#include <cstdint>

#include "kernels/fused/views.h"
#include "kernels/tile/fast_divide.h"

namespace hpcattn {

/// Rows of a token, and what is known of each: q's heads, then k's, then v's.
enum RopeRow : int { kQueryRow = 0, kKeyRow = 1, kValueRow = 2 };

/// [head_dim], or [num_heads * head_dim] with RopeNorm::kToken
struct WeightView {
  const char* data = nullptr;
  std::int64_t stride = 0;  // bytes
  DType dtype = DType::kFloat32;
  bool vectors = false;
};

struct RopeParams {
  RowsView inputs[3];     // by RopeRow
  RowsView outputs[3];    // out_q, and where given out_k, out_v
  CacheView caches[2];    // k, v; none: nothing is stored
  ScaleView scales[3];    // q_scale, k_scale, v_scale; no q_scale: one is computed for each row
  RowsView out_q_scale;   // [num_tokens, num_q_heads, 1] float32
  WeightView weights[2];  // of q, k
  const char* cos_sin = nullptr;    // [max_position, rotary_dim]: cosines, then sines
  std::int64_t cos_sin_stride = 0;  // bytes
  DType cos_sin_dtype = DType::kFloat32;
  bool cos_sin_vectors = false;  // NeoX, in pieces of 8 pairs that follow one position
  bool interleaved = false;
  bool norm_first = false;
  bool mrope = false;

  IndexView positions;     // [num_tokens], mrope: [3, num_tokens]
  IndexView cu_seqlens_q;  // [num_requests + 1]
  IndexView kv_lens;       // [num_requests]
  IndexView page_table;    // [num_requests, max_pages]
  IndexView slot_mapping;  // [num_tokens]
  std::int64_t num_tokens = 0;
  std::int64_t num_requests = 0;
  std::int64_t max_position = 0;
  std::int64_t max_pages = 0;
  std::int64_t num_pages = 0;
  std::int64_t page_size = 0;
  FastDivide per_page;  // by page_size

  double eps = 0.0;
  double upper_max = 448.0;
  std::int32_t num_q_heads = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t rotary_dim = 0;
  std::int32_t sections[3] = {};
  std::int32_t rows_per_team = 1;   // RopeNorm::kToken: all rows of a token go to one cta
  std::int32_t* cleared = nullptr;  // num_cleared of them become 0
  std::int64_t num_cleared = 0;
  Fault* faults = nullptr;

  constexpr std::int32_t num_rows() const { return num_q_heads + 2 * num_kv_heads; }
  constexpr std::int32_t teams_per_token() const {
    return (num_rows() + rows_per_team - 1) / rows_per_team;
  }
};

}  // namespace hpcattn
