// SPDX-License-Identifier: Apache-2.0
// Writing K and V into pages on the CPU. Arguments were checked: see src/ops/store.cc.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hpcattn/execution.h"
#include "hpcattn/store.h"
#include "hpcattn/tensor.h"

namespace hpcattn::cpu {

/// A token that is not written.
inline constexpr std::int64_t kNoSlot = -1;

/// The scale of each head; 1 where none is given.
std::vector<double> scales_of_heads(const Tensor& scale, std::int64_t num_heads);

/// Address of entry [i, j] (rank 3 tensors: of its rows).
char* row_address(const Tensor& tensor, std::int64_t i, std::int64_t j);

/// Where the heads of one token lie in a cache.
struct CachePlace {
  char* first_head = nullptr;
  std::int64_t head_bytes = 0;  // from one head to the next

  CachePlace() = default;
  /// `slot` counts tokens of the pool: page * page_size + place in the page.
  CachePlace(const Tensor& cache, std::int64_t slot);
  char* head(std::int64_t index) const { return first_head + index * head_bytes; }
};

/// Tokens that one task of run_parallel takes, for tokens of so many elements.
std::int64_t tokens_per_task(std::int64_t elements_per_token);

/// slots[t]: where token t goes, or kNoSlot. Tokens past the end of `slots` are not written.
void store_kv(const StoreKvArgs& args, std::span<const std::int64_t> slots,
              const Execution& execution);

}  // namespace hpcattn::cpu
