// SPDX-License-Identifier: Apache-2.0
// Attention over a paged KV cache, and over packed K and V without pages. Decode, speculative rows,
// prefill and chunked prefill are one problem: a request has some new query tokens, at the end of
// some KV tokens. docs/operators/attention.md has the mathematics.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "hpcattn/execution.h"
#include "hpcattn/tensor.h"

namespace hpcattn {

/// What is computed for one (query token i, KV token j) pair. With n query and m KV tokens in a
/// request, query token i stands at position m - n + i.
///
///   s = scale * q_scale * k_scale * (q . k)
///   s = softcap * tanh(s / softcap)                    where softcap > 0
///   s = s - alibi_slope * |position(i) - j|            where ALiBi slopes are given
///   visible: j <= position(i)                          where causal
///            j > position(i) - window                  where a window is given
///            j < position(i) + window                  where a window is given and not causal
///   out = v_scale * sum_j softmax(s)_j v_j             a sink adds exp(sink) to the denominator
///   lse = log(sum_j exp(s_j) + exp(sink))              natural logarithm
///
/// A row that sees nothing gives out = 0 and lse = -inf (with a sink: lse = the sink).
struct AttentionOptions {
  /// Required: multiplies q . k (1/sqrt(head_dim) in most models). NaN is refused.
  double scale = std::numeric_limits<double>::quiet_NaN();
  bool causal = true;
  /// Number of KV tokens that a row sees, its own included; at least 1.
  std::optional<std::int64_t> window;
  /// 0: none.
  double softcap = 0.0;

  Tensor alibi_slopes;  // [num_q_heads] float32
  Tensor sinks;         // [num_q_heads] float32, float16 or bfloat16; a logit without a value
  /// For an fp8 q: float32 [1], [num_tokens, num_q_heads], or by request [num_requests,
  /// num_q_heads, most_tokens]: of each request's tokens, others are not read.
  Tensor q_scale;
  Tensor k_scale;    // float32 [1] or [num_kv_heads]; real K = stored K * k_scale
  Tensor v_scale;    // float32 [1] or [num_kv_heads]
  Tensor out_scale;  // float32 [1]; for an fp8 out: stored = out / out_scale, saturated
};

/// Arguments of paged_attention.
///
/// dtypes: q float32, float16, bfloat16 or float8_e4m3; K and V alike: q's dtype, float8_e4m3 or
/// float8_e5m2 (a float8 q goes with float8 K and V). out: q's dtype, or float8_e4m3 with
/// out_scale; for a float8 q any of float32, float16, bfloat16 and (with out_scale) float8_e4m3.
struct PagedAttentionArgs {
  Tensor q;  // [num_tokens, num_q_heads, head_dim], last dim contiguous
  Tensor
      k_cache;  // [num_pages, page_size, num_kv_heads, head_dim], any strides, last dim contiguous
  Tensor v_cache;       // as k_cache; its strides may differ
  Tensor page_table;    // [num_requests, max_pages] int32; entries past a request's length are not
                        // read; the keys of a page -1 do not exist
  Tensor cu_seqlens_q;  // [num_requests + 1] int32, from 0, not falling, to at most num_tokens
  Tensor kv_lens;       // [num_requests] int32, KV tokens, the new ones included
  Tensor out;  // [num_tokens, num_q_heads, head_dim]; rows past cu_seqlens_q's end become 0
  Tensor lse;  // optional [num_tokens, num_q_heads] float32; -inf past cu_seqlens_q's end
  AttentionOptions options;
  Tensor plan;  // optional: made by make_plan for this group and batch; else made in the call
  std::int64_t fixed_split = 0;  // as the plan was made with; without a plan, for the one made here
};

/// Throws InvalidArgument or Unsupported, and has then written nothing.
void paged_attention(const PagedAttentionArgs& args, const Execution& execution = {});

/// Arguments of packed_attention: K and V lie like q, one request after the other, without pages.
/// A request may have more KV tokens than query tokens; the query tokens are its last ones.
struct PackedAttentionArgs {
  Tensor q;             // [num_tokens, num_q_heads, head_dim]
  Tensor k;             // [num_kv_tokens, num_kv_heads, head_dim]
  Tensor v;             // as k
  Tensor cu_seqlens_q;  // [num_requests + 1] int32
  Tensor cu_seqlens_k;  // [num_requests + 1] int32, from 0, not falling, to at most num_kv_tokens
  Tensor out;           // as in PagedAttentionArgs
  Tensor lse;           // as in PagedAttentionArgs
  AttentionOptions options;
  Tensor plan;
  std::int64_t fixed_split = 0;  // as in PagedAttentionArgs
};

/// Throws InvalidArgument or Unsupported, and has then written nothing.
void packed_attention(const PackedAttentionArgs& args, const Execution& execution = {});

}  // namespace hpcattn
