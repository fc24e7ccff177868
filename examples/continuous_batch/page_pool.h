// SPDX-License-Identifier: Apache-2.0
// The KV cache: pages that requests borrow, one K and one V pool a layer.
#pragma once

#include <cstdint>
#include <vector>

#include "hpcattn/tensor.h"
#include "model.h"

namespace example {

class PagePool {
 public:
  static constexpr int kPageSize = 16;

  PagePool(const Config& config, int num_pages);

  static int pages_for(std::size_t num_tokens);

  int num_pages() const { return num_pages_; }
  int num_free() const { return int(free_.size()); }
  /// Pages that were handed out after another request had given them back.
  int num_reused() const { return num_reused_; }

  /// `count` pages; the caller has seen that num_free() is enough.
  std::vector<std::int32_t> take(int count);
  void give_back(const std::vector<std::int32_t>& pages);

  /// [num_pages, page_size, num_kv_heads, head_dim] float32.
  hpcattn::Tensor k(std::size_t layer) { return pool_tensor(k_[layer]); }
  hpcattn::Tensor v(std::size_t layer) { return pool_tensor(v_[layer]); }

 private:
  hpcattn::Tensor pool_tensor(std::vector<float>& pool);

  Config config_;
  int num_pages_;
  std::vector<std::vector<float>> k_;
  std::vector<std::vector<float>> v_;
  std::vector<std::int32_t> free_;
  std::vector<bool> used_before_;
  int num_reused_ = 0;
};

}  // namespace example
