// SPDX-License-Identifier: Apache-2.0
// The fused prologue of an attention layer: QK-norm, RoPE, KV-cache write and FP8 quantisation.
#pragma once

#include <array>
#include <cstdint>

#include "hpcattn/execution.h"
#include "hpcattn/tensor.h"

namespace hpcattn {

/// Order of RMSNorm and RoPE on q and k. The values are those of the `hpc` interface.
enum class QkNormPolicy : int { kNone = 0, kRopeThenNorm = 1, kNormThenRope = 2 };

/// How the rotary dims pair: NeoX (i, i + rotary_dim/2) or interleaved (2i, 2i + 1).
enum class RopeStyle : int { kNeox = 0, kInterleaved = 1 };

/// What one mean square is taken over: a head, or all heads of a token (weights [num_heads *
/// head_dim]).
enum class NormScope : int { kHead = 0, kToken = 1 };

/// For each token: q and k are normed and rotated as the policy says, K and V are written to the
/// cache, and q goes to out_q.
///
///   RMSNorm(x) = x / sqrt(mean(x^2) + eps) * weight
///   RoPE: the first rotary_dim dims of each head; the rest passes through
///   fp8 K, V: saturate(x / scale);  fp8 q: saturate(q / q_scale)
///
/// Positions are `positions` where given, else kv_len - n + i for the i-th of a request's n tokens.
/// Places are `slot_mapping` where given, else the page table's at that same kv_len - n + i.
struct RopeNormStoreKvArgs {
  Tensor q;  // [num_tokens, num_q_heads, head_dim] float32, float16, bfloat16; any token and head
             // stride
  Tensor
      k;  // [num_tokens, num_kv_heads, head_dim], q's dtype; a view of the same packed qkv, or not
  Tensor v;  // as k

  Tensor
      cos_sin;  // [max_position, rotary_dim] float32, float16, bfloat16: first half cos, second sin
  RopeStyle style = RopeStyle::kNeox;
  Tensor positions;  // optional [num_tokens], or [3, num_tokens] with mrope_section; int32 or int64
  std::array<std::int64_t, 3>
      mrope_section{};  // pairs that follow each of the three positions; 0: no mrope

  Tensor
      cu_seqlens_q;  // [num_requests + 1] int32; needed unless positions and slot_mapping are given
  Tensor kv_lens;    // [num_requests] int32, the new tokens included; likewise
  Tensor page_table;    // [num_requests, max_pages] int32; needed for a cache without slot_mapping
  Tensor slot_mapping;  // optional [num_tokens] int32 or int64; -1 is not written

  Tensor k_cache;  // optional [num_pages, page_size, num_kv_heads, head_dim]; q's dtype or fp8
  Tensor v_cache;  // as k_cache; neither: nothing is stored (a layer that shares another's KV)
  Tensor k_scale;  // float32 [1] or [num_kv_heads], > 0; required for an fp8 cache, out_k or out_v
  Tensor v_scale;

  Tensor out_q;  // [num_tokens, num_q_heads, head_dim], q's dtype or float8_e4m3; may be q itself.
                 // Rows past cu_seqlens_q's end become 0
  Tensor out_k;  // optional [num_tokens, num_kv_heads, head_dim], q's dtype or the cache's: K as
                 // stored
  Tensor out_v;  // optional, as out_k

  /// For a float8 out_q. With q_scale [1] given, that scale is used; else one is computed for each
  /// token and head, amax / upper_max, and returned in out_q_scale (1 where amax is 0).
  Tensor q_scale;
  Tensor out_q_scale;  // [num_tokens, num_q_heads] float32
  double upper_max = 448.0;

  Tensor cleared;  // optional, contiguous int32 of any shape: becomes 0 (counters of a kernel that
                   // comes next, which would else need a launch to clear them)

  QkNormPolicy norm_policy = QkNormPolicy::kNone;
  NormScope norm_scope = NormScope::kHead;
  Tensor q_norm_weight;  // [head_dim], or [num_q_heads * head_dim] for NormScope::kToken; any float
                         // dtype
  Tensor k_norm_weight;  // likewise
  double norm_eps = -1.0;  // required, >= 0, where norm_policy is not kNone
};

/// Throws InvalidArgument or Unsupported, and has then written nothing.
void rope_norm_store_kv(const RopeNormStoreKvArgs& args, const Execution& execution = {});

}  // namespace hpcattn
