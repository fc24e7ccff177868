// SPDX-License-Identifier: Apache-2.0
// store_kv, rope_norm_store_kv and merge_partials over a test batch on the GPU, judged by the
// float64 references. "" when all is well.
#pragma once

#include <cstdint>
#include <string>

#include "src/testing/gpu.h"
#include "src/testing/merge_case.h"
#include "src/testing/rope_case.h"
#include "src/testing/store_case.h"

namespace hpcattn::testkit {

std::string run_store(GpuLane& lane, const StoreCase& c, std::uint64_t seed = 1);
std::string run_rope(GpuLane& lane, const RopeCase& c);
std::string run_merge(GpuLane& lane, const MergeCase& c);

}  // namespace hpcattn::testkit
