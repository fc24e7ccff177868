// SPDX-License-Identifier: Apache-2.0
// store_kv on a GPU. Arguments were checked: see src/ops/store.cc.
#pragma once

#include <vector>

#include "hpcattn/store.h"
#include "kernels/fused/store/config.h"
#include "kernels/fused/store/params.h"
#include "src/cuda/kernel.h"

namespace hpcattn::cuda {

KernelVariant variant_of(const StoreSpec& spec);

/// The variant that a call takes; its dtypes decide.
StoreSpec store_spec(DType dtype, DType cache_dtype);

/// All that there are.
std::vector<KernelVariant> all_store_variants();

/// What a launch passes.
StoreParams store_params(const StoreKvArgs& args, Fault* faults);

void store_kv(const StoreKvArgs& args, const Execution& execution);

}  // namespace hpcattn::cuda
