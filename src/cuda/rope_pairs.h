// SPDX-License-Identifier: Apache-2.0
// rope_norm_store_kv's kernel for 16-bit rows in aligned pieces.
#pragma once

#include <optional>
#include <vector>

#include "hpcattn/rope.h"
#include "kernels/fused/rope_pairs/config.h"
#include "kernels/fused/rope_pairs/params.h"
#include "src/cuda/kernel.h"

namespace hpcattn::cuda {

KernelVariant variant_of(const RopePairsSpec& spec);

/// The variant that a call takes; none: kernels/fused/rope takes it.
std::optional<RopePairsSpec> rope_pairs_spec(const RopeNormStoreKvArgs& args);

/// Those that calls of a model take whose tensors are aligned, of either style.
std::vector<RopePairsSpec> rope_pairs_specs(DType dtype, std::int64_t head_dim, QkNormPolicy policy,
                                            NormScope scope);

/// All that there are.
std::vector<KernelVariant> all_rope_pairs_variants();

/// What a launch passes, on a device of so many multiprocessors.
RopePairsParams rope_pairs_params(const RopeNormStoreKvArgs& args, int num_sms, Fault* faults);

/// Ctas of a launch.
unsigned rope_pairs_ctas(const RopePairsParams& params);

}  // namespace hpcattn::cuda
