// SPDX-License-Identifier: Apache-2.0
#include "src/gpu_tests/kv_run.h"

#include "src/cuda/rope_pairs.h"
#include "src/testing/device_call.h"

namespace hpcattn::testkit {
std::string run_store(GpuLane& lane, const StoreCase& c, std::uint64_t seed) {
  StoreBatch batch(c, seed);
  const std::string report = batch.run_and_check_by([&](const StoreKvArgs& args) {
    return call_on_gpu(lane, args,
                       [](const StoreKvArgs& a, const Execution& e) { store_kv(a, e); });
  });
  return report.empty() ? "" : to_string(c) + ", seed " + std::to_string(seed) + ": " + report;
}

std::string run_rope(GpuLane& lane, const RopeCase& c) {
  RopeTolerance tolerance;  // known when the call has been made, and only looked at then
  const auto call = [&](const RopeNormStoreKvArgs& args, const Execution& execution) {
    if (cuda::rope_pairs_spec(args)) tolerance = kRopeInFloat32;
    rope_norm_store_kv(args, execution);
  };
  return RopeBatch(c).run_and_check_by(
      [&](const RopeNormStoreKvArgs& args) { return call_on_gpu(lane, args, call); }, tolerance);
}

std::string run_merge(GpuLane& lane, const MergeCase& c) {
  return run_and_check_by(c, [&](const MergeArgs& args) {
    return call_on_gpu(lane, args,
                       [](const MergeArgs& a, const Execution& e) { merge_partials(a, e); });
  });
}

}  // namespace hpcattn::testkit
