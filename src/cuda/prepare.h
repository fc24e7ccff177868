// SPDX-License-Identifier: Apache-2.0
// Loads kernels before they are needed, several at once.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "src/cuda/kernel.h"

namespace hpcattn::cuda {

struct Prepared {
  int done = 0;  // of total, this one included
  int total = 0;
  std::string name;
  double seconds = 0;
  bool compiled = false;  // else found in a cache, or loaded already
};

/// Called from any thread, one call at a time, as each variant is ready.
using Progress = std::function<void(const Prepared&)>;

/// Returns when all variants are loaded on `device`. `num_threads` 0: the cores of this process.
/// Throws the first failure after the variants under way have ended; what was loaded stays.
void prepare_kernels(std::span<const KernelVariant> variants, int device,
                     const Progress& progress = {}, int num_threads = 0);

/// The same without a GPU: the caches then hold all variants for `arch`.
void prepare_cubins(std::span<const KernelVariant> variants, const std::string& arch,
                    const Progress& progress = {}, int num_threads = 0);

}  // namespace hpcattn::cuda
