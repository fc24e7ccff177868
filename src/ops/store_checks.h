// SPDX-License-Identifier: Apache-2.0
// Checks that store_kv and rope_norm_store_kv share: the cache, its scales, and the slot of each
// token.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "hpcattn/tensor.h"

namespace hpcattn::ops {

/// k_cache and v_cache: of like shape and dtype, of one that `k` can be stored in, with k's heads.
/// Throws InvalidArgument, Unsupported for a head dim or page size outside support.h's table.
void check_cache(std::string_view op, const Tensor& k, const Tensor& k_cache,
                 const Tensor& v_cache);

/// Throws Unsupported for a head dim outside support.h's table.
void check_head_dim(std::string_view op, std::int64_t head_dim);

/// A scale is given where something fp8 is made with it, and only there. `target`: what that is.
void check_store_scale(std::string_view op, std::string_view arg, const Tensor& scale, bool needed,
                       std::string_view target, Device device, std::int64_t num_heads);

/// The slots of the first `count` tokens: -1, or within the cache. Throws InvalidArgument.
std::vector<std::int64_t> slots_of_mapping(std::string_view op, const Tensor& slot_mapping,
                                           std::int64_t count, const Tensor& k_cache);

/// The slots of `count` tokens of the requests that cu_seqlens_q cuts: token i of a request's n
/// stands at kv_len - n + i of its row of the page table. A page of -1 gives -1. Lengths were
/// checked.
std::vector<std::int64_t> slots_of_pages(std::string_view op, const Tensor& page_table,
                                         const Tensor& cu_seqlens_q, const Tensor& kv_lens,
                                         std::int64_t count, const Tensor& k_cache);

}  // namespace hpcattn::ops
