// SPDX-License-Identifier: Apache-2.0
// merge_partials on a GPU. Arguments were checked: see src/ops/merge.cc.
#pragma once

#include <vector>

#include "hpcattn/merge.h"
#include "kernels/merge/config.h"
#include "kernels/merge/params.h"
#include "src/cuda/kernel.h"

namespace hpcattn::cuda {

KernelVariant variant_of(const MergeSpec& spec);

/// The variant that a call takes; its dtypes decide.
MergeSpec merge_spec(DType dtype, DType out_dtype);

/// All that there are.
std::vector<KernelVariant> all_merge_variants();

/// All partials of a call, in its order.
std::vector<MergeView> merge_views(const MergeArgs& args);

/// What a launch passes; `more` is left to be set where there are more than kMergeInline.
MergeParams merge_params(const MergeArgs& args, const std::vector<MergeView>& views);

void merge_partials(const MergeArgs& args, const Execution& execution);

}  // namespace hpcattn::cuda
