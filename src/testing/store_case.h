// SPDX-License-Identifier: Apache-2.0
// A call of store_kv, built from a description and a seed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "hpcattn/store.h"
#include "src/testing/guarded_tensor.h"
#include "src/testing/kv_pool.h"

namespace hpcattn::testkit {

struct StoreCase {
  DType dtype = DType::kBFloat16;
  DType cache_dtype = DType::kBFloat16;
  DType index_dtype = DType::kInt32;
  KvLayout layout = KvLayout::kNhd;
  std::int64_t num_tokens = 41;
  std::int64_t num_kv_heads = 3;
  std::int64_t head_dim = 80;
  std::int64_t page_size = 8;
  std::int64_t padding_tokens = 0;  // past the end of slot_mapping
  double hole_share = 0.2;
  bool scale_per_head = true;
  bool packed = true;  // k and v are views of one tensor
};

std::string to_string(const StoreCase& c);

/// Rows of padding are NaN, the pool starts as NaN.
struct StoreBatch {
  explicit StoreBatch(const StoreCase& c, std::uint64_t seed = 1);

  /// Runs the operator: "" when every place is right and nothing else was written.
  std::string run_and_check(const Execution& execution = {});

  /// The same, by whatever carries the call out; its report comes first.
  std::string run_and_check_by(const std::function<std::string(const StoreKvArgs&)>& call);

  GuardedTensor k, v, slots, k_scale, v_scale;
  KvPool pool;
  StoreKvArgs args;
};

}  // namespace hpcattn::testkit
