// SPDX-License-Identifier: Apache-2.0
#include "src/gpu_tests/kv_run.h"

#include "src/testing/device_call.h"

namespace hpcattn::testkit {
namespace {

/// The kernel that counts in float64 rounds once. It takes what its neighbour does not: rows that
/// are not aligned, float32, a norm over all heads of a token.
RopeTolerance tolerance_of(const RopeCase& c) {
  const bool over_token = c.policy != QkNormPolicy::kNone && c.scope == NormScope::kToken;
  if (!c.aligned || c.dtype == DType::kFloat32 || over_token) return {};
  return kRopeInFloat32;
}

}  // namespace

std::string run_store(GpuLane& lane, const StoreCase& c, std::uint64_t seed) {
  StoreBatch batch(c, seed);
  const std::string report = batch.run_and_check_by([&](const StoreKvArgs& args) {
    return call_on_gpu(lane, args, [](const StoreKvArgs& a, const Execution& e) { store_kv(a, e); });
  });
  return report.empty() ? "" : to_string(c) + ", seed " + std::to_string(seed) + ": " + report;
}

std::string run_rope(GpuLane& lane, const RopeCase& c) {
  return RopeBatch(c).run_and_check_by(
      [&](const RopeNormStoreKvArgs& args) {
        return call_on_gpu(
            lane, args,
            [](const RopeNormStoreKvArgs& a, const Execution& e) { rope_norm_store_kv(a, e); });
      },
      tolerance_of(c));
}

std::string run_merge(GpuLane& lane, const MergeCase& c) {
  return run_and_check_by(c, [&](const MergeArgs& args) {
    return call_on_gpu(lane, args,
                       [](const MergeArgs& a, const Execution& e) { merge_partials(a, e); });
  });
}

}  // namespace hpcattn::testkit
