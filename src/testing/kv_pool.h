// SPDX-License-Identifier: Apache-2.0
// A pool of KV pages in guarded memory, all poison, for operators that write K and V.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "src/cpu/reference/store.h"
#include "src/testing/attention_case.h"
#include "src/testing/guarded_buffer.h"
#include "src/testing/rounded_check.h"

namespace hpcattn::testkit {

struct KvPoolShape {
  KvLayout layout = KvLayout::kNhd;
  DType dtype = DType::kFloat32;
  std::int64_t num_pages = 4;
  std::int64_t page_size = 16;
  std::int64_t num_kv_heads = 2;
  std::int64_t head_dim = 64;
  GuardSide side = GuardSide::kAfter;
};

class KvPool {
 public:
  KvPool() = default;
  explicit KvPool(const KvPoolShape& shape);

  const Tensor& k() const { return k_; }
  const Tensor& v() const { return v_; }

  /// "" when the rows at `places` hold `want_k` and `want_v` ([token, head, dim], in stored units)
  /// as near as they must be, and every other byte of the pool is what it was.
  std::string check(std::span<const reference::Place> places, const std::vector<double>& want_k,
                    const std::vector<double>& want_v,
                    Nearness nearness = Nearness::kRoundedOnce) const;

  /// No byte was written.
  bool untouched() const;

  std::vector<std::uint8_t> bytes() const;

 private:
  std::string check_side(const Tensor& cache, const std::string& label,
                         std::span<const reference::Place> places, const std::vector<double>& want,
                         Nearness nearness) const;
  std::string check_rest(std::span<const reference::Place> places) const;

  GuardedBuffer first_;   // K, or both
  GuardedBuffer second_;  // V where it has memory of its own
  Tensor k_;
  Tensor v_;
};

}  // namespace hpcattn::testkit
