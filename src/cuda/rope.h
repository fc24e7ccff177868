// SPDX-License-Identifier: Apache-2.0
// rope_norm_store_kv on a GPU. Arguments were checked: see src/ops/rope_checks.h.
#pragma once

#include <vector>

#include "hpcattn/rope.h"
#include "kernels/fused/rope/config.h"
#include "kernels/fused/rope/params.h"
#include "src/cuda/kernel.h"

namespace hpcattn::cuda {

KernelVariant variant_of(const RopeSpec& spec);

/// The variant that a call takes. Nothing else of a call makes another one.
RopeSpec rope_spec(DType dtype, QkNormPolicy policy, NormScope scope);

/// All that there are.
std::vector<KernelVariant> all_rope_variants();

/// What a launch passes, on a device of so many multiprocessors.
RopeParams rope_params(const RopeNormStoreKvArgs& args, int num_sms, Fault* faults);

void rope_norm_store_kv(const RopeNormStoreKvArgs& args, const Execution& execution);

}  // namespace hpcattn::cuda
