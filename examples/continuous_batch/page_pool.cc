// SPDX-License-Identifier: Apache-2.0
#include "page_pool.h"

#include <limits>

namespace example {

PagePool::PagePool(const Config& config, int num_pages)
    : config_(config), num_pages_(num_pages), used_before_(std::size_t(num_pages), false) {
  const std::size_t elements = std::size_t(num_pages) * kPageSize *
                               std::size_t(config.num_kv_heads) * std::size_t(config.head_dim);
  // Slots that no token was written to are never looked at: NaN in them would show.
  const std::vector<float> unwritten(elements, std::numeric_limits<float>::quiet_NaN());
  k_.assign(std::size_t(config.num_layers), unwritten);
  v_.assign(std::size_t(config.num_layers), unwritten);
  for (int page = num_pages - 1; page >= 0; --page) free_.push_back(page);
}

int PagePool::pages_for(std::size_t num_tokens) {
  return int((num_tokens + kPageSize - 1) / kPageSize);
}

std::vector<std::int32_t> PagePool::take(int count) {
  const std::vector<std::int32_t> pages(free_.end() - count, free_.end());
  free_.resize(free_.size() - std::size_t(count));
  for (const std::int32_t page : pages) {
    num_reused_ += used_before_[std::size_t(page)] ? 1 : 0;
    used_before_[std::size_t(page)] = true;
  }
  return pages;
}

void PagePool::give_back(const std::vector<std::int32_t>& pages) {
  free_.insert(free_.end(), pages.begin(), pages.end());
}

hpcattn::Tensor PagePool::pool_tensor(std::vector<float>& pool) {
  return hpcattn::Tensor::contiguous(
      pool.data(), hpcattn::DType::kFloat32,
      {num_pages_, kPageSize, config_.num_kv_heads, config_.head_dim});
}

}  // namespace example
