// SPDX-License-Identifier: Apache-2.0
// The functions behind torch.ops.hpcattn, in the order of their schemas in library.cc. Each names
// its tensors, fills the library's argument struct and calls the operator; all checks are the
// library's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "torch/arguments.h"

namespace hpcattn::torch_ops {

void paged_attention(StableTensor q, StableTensor k_cache, StableTensor v_cache,
                     StableTensor page_table, StableTensor cu_seqlens_q, StableTensor kv_lens,
                     StableTensor out, OptionalTensor lse, double scale, bool causal,
                     std::optional<std::int64_t> window, double softcap,
                     OptionalTensor alibi_slopes, OptionalTensor sinks, OptionalTensor q_scale,
                     OptionalTensor k_scale, OptionalTensor v_scale, OptionalTensor out_scale,
                     OptionalTensor plan);

void packed_attention(StableTensor q, StableTensor k, StableTensor v, StableTensor cu_seqlens_q,
                      StableTensor cu_seqlens_k, StableTensor out, OptionalTensor lse, double scale,
                      bool causal, std::optional<std::int64_t> window, double softcap,
                      OptionalTensor alibi_slopes, OptionalTensor sinks, OptionalTensor q_scale,
                      OptionalTensor k_scale, OptionalTensor v_scale, OptionalTensor out_scale,
                      OptionalTensor plan);

void merge_partials(std::vector<StableTensor> partials, std::vector<StableTensor> lses,
                    StableTensor out, OptionalTensor lse);

void store_kv(StableTensor k, StableTensor v, StableTensor k_cache, StableTensor v_cache,
              StableTensor slot_mapping, OptionalTensor k_scale, OptionalTensor v_scale);

void rope_norm_store_kv(StableTensor q, StableTensor k, StableTensor v, StableTensor cos_sin,
                        StableTensor out_q, OptionalTensor out_q_scale, OptionalTensor out_k,
                        OptionalTensor out_v, OptionalTensor k_cache, OptionalTensor v_cache,
                        std::string style, OptionalTensor positions,
                        std::optional<std::vector<std::int64_t>> mrope_section,
                        OptionalTensor cu_seqlens_q, OptionalTensor kv_lens,
                        OptionalTensor page_table, OptionalTensor slot_mapping,
                        OptionalTensor k_scale, OptionalTensor v_scale, OptionalTensor q_scale,
                        double upper_max, std::string norm_policy, std::string norm_scope,
                        OptionalTensor q_norm_weight, OptionalTensor k_norm_weight,
                        std::optional<double> norm_eps);

void make_plan(StableTensor cu_seqlens_q, StableTensor kv_lens, StableTensor plan,
               std::int64_t num_q_heads, std::int64_t num_kv_heads, std::int64_t head_dim,
               std::int64_t page_size, ScalarType q_dtype, ScalarType kv_dtype, bool causal,
               std::optional<std::int64_t> window, std::int64_t fixed_split);

std::int64_t plan_words(std::int64_t max_requests, std::int64_t max_tokens, std::int64_t max_kv_len,
                        std::int64_t num_q_heads, std::int64_t num_kv_heads, std::int64_t head_dim,
                        std::int64_t page_size, ScalarType q_dtype, ScalarType kv_dtype,
                        bool causal, std::optional<std::int64_t> window, std::int64_t fixed_split);

std::string plan_summary(StableTensor plan);

/// The library's table of what attention takes, as JSON: Python's fake implementations read it.
std::string support();

}  // namespace hpcattn::torch_ops
