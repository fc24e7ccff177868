// SPDX-License-Identifier: Apache-2.0
// The functions behind torch.ops.hpcattn, in the order of their schemas in library.cc. Each names
// its tensors, fills the library's argument struct and calls the operator; all checks are the
// library's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hpcattn/plan.h"
#include "torch/arguments.h"

namespace hpcattn::torch_ops {

using OptionalDevice = std::optional<torch::stable::Device>;

void paged_attention(const StableTensor& q, const StableTensor& k_cache,
                     const StableTensor& v_cache, const StableTensor& page_table,
                     const StableTensor& cu_seqlens_q, const StableTensor& kv_lens,
                     const StableTensor& out, const OptionalTensor& lse, double scale, bool causal,
                     std::optional<std::int64_t> window, double softcap,
                     const OptionalTensor& alibi_slopes, const OptionalTensor& sinks,
                     const OptionalTensor& q_scale, const OptionalTensor& k_scale,
                     const OptionalTensor& v_scale, const OptionalTensor& out_scale,
                     const OptionalTensor& plan, std::int64_t fixed_split);

void packed_attention(const StableTensor& q, const StableTensor& k, const StableTensor& v,
                      const StableTensor& cu_seqlens_q, const StableTensor& cu_seqlens_k,
                      const StableTensor& out, const OptionalTensor& lse, double scale, bool causal,
                      std::optional<std::int64_t> window, double softcap,
                      const OptionalTensor& alibi_slopes, const OptionalTensor& sinks,
                      const OptionalTensor& q_scale, const OptionalTensor& k_scale,
                      const OptionalTensor& v_scale, const OptionalTensor& out_scale,
                      const OptionalTensor& plan, std::int64_t fixed_split);

void merge_partials(const std::vector<StableTensor>& partials,
                    const std::vector<StableTensor>& lses, const StableTensor& out,
                    const OptionalTensor& lse);

void store_kv(const StableTensor& k, const StableTensor& v, const StableTensor& k_cache,
              const StableTensor& v_cache, const StableTensor& slot_mapping,
              const OptionalTensor& k_scale, const OptionalTensor& v_scale);

void rope_norm_store_kv(const StableTensor& q, const StableTensor& k, const StableTensor& v,
                        const StableTensor& cos_sin, const StableTensor& out_q,
                        const OptionalTensor& out_q_scale, const OptionalTensor& out_k,
                        const OptionalTensor& out_v, const OptionalTensor& k_cache,
                        const OptionalTensor& v_cache, const OptionalTensor& cleared,
                        const std::string& style, const OptionalTensor& positions,
                        const std::optional<std::vector<std::int64_t>>& mrope_section,
                        const OptionalTensor& cu_seqlens_q, const OptionalTensor& kv_lens,
                        const OptionalTensor& page_table, const OptionalTensor& slot_mapping,
                        const OptionalTensor& k_scale, const OptionalTensor& v_scale,
                        const OptionalTensor& q_scale, double upper_max,
                        const std::string& norm_policy, const std::string& norm_scope,
                        const OptionalTensor& q_norm_weight, const OptionalTensor& k_norm_weight,
                        std::optional<double> norm_eps);

/// Of an operator that takes a group's fields one by one.
AttentionGroup group_of(const char* op, std::int64_t num_q_heads, std::int64_t num_kv_heads,
                        std::int64_t head_dim, std::int64_t page_size, ScalarType q_dtype,
                        ScalarType kv_dtype, bool causal, std::optional<std::int64_t> window);

void make_plan(const StableTensor& cu_seqlens_q, const StableTensor& kv_lens,
               const StableTensor& plan, std::int64_t num_q_heads, std::int64_t num_kv_heads,
               std::int64_t head_dim, std::int64_t page_size, ScalarType q_dtype,
               ScalarType kv_dtype, bool causal, std::optional<std::int64_t> window,
               std::int64_t fixed_split);

std::int64_t plan_words(std::int64_t max_requests, std::int64_t max_tokens, std::int64_t max_kv_len,
                        std::int64_t num_q_heads, std::int64_t num_kv_heads, std::int64_t head_dim,
                        std::int64_t page_size, ScalarType q_dtype, ScalarType kv_dtype,
                        bool causal, std::optional<std::int64_t> window, std::int64_t fixed_split,
                        const OptionalDevice& device);

std::string plan_summary(const StableTensor& plan);

/// The library's table of what attention takes, as JSON: Python's fake implementations read it.
std::string support();

}  // namespace hpcattn::torch_ops
