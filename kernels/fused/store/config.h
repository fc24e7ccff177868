// SPDX-License-Identifier: Apache-2.0
// The variants of store_kv's kernel.
#pragma once

#include "hpcattn/dtype_id.h"

namespace hpcattn {

struct StoreSpec {
  DType dtype = DType::kBFloat16;        // of k and v
  DType cache_dtype = DType::kBFloat16;  // the same, or fp8
  friend bool operator==(const StoreSpec&, const StoreSpec&) = default;
};

inline constexpr int kStoreThreads = 128;  // of a cta, a thread to 8 elements

}  // namespace hpcattn
