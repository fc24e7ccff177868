// SPDX-License-Identifier: Apache-2.0
// The loaded kernels of one family, found by spec without making any text: what a launch pays for.
#pragma once

#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "src/cuda/kernel.h"

namespace hpcattn::cuda {

/// `Spec` has operator==, and `variant_of(const Spec&)` makes its KernelVariant.
template <typename Spec>
class KernelTable {
 public:
  template <typename VariantOf>
  const Kernel& get(int device, const Spec& spec, const VariantOf& variant_of) {
    {
      const std::shared_lock lock(mutex_);
      if (const Kernel* kernel = find(device, spec)) return *kernel;
    }
    // Not under the lock: compiling takes seconds, and load_kernel knows who compiles what.
    const Kernel& loaded = load_kernel(device, variant_of(spec));
    const std::unique_lock lock(mutex_);
    if (find(device, spec) == nullptr) entries_.push_back({device, spec, &loaded});
    return loaded;
  }

 private:
  struct Entry {
    int device;
    Spec spec;
    const Kernel* kernel;
  };

  const Kernel* find(int device, const Spec& spec) const {
    for (const Entry& entry : entries_) {
      if (entry.device == device && entry.spec == spec) return entry.kernel;
    }
    return nullptr;
  }

  mutable std::shared_mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace hpcattn::cuda
