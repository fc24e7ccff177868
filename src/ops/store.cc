// SPDX-License-Identifier: Apache-2.0
#include "hpcattn/store.h"

#include <array>

#include "src/common/check.h"
#include "src/common/counter.h"
#include "src/cpu/store.h"
#include "src/cuda/store.h"
#include "src/ops/check_tensor.h"
#include "src/ops/host_values.h"
#include "src/ops/overlap.h"
#include "src/ops/store_checks.h"

namespace hpcattn {
namespace {

using namespace ops;  // NOLINT: the checks of this layer

constexpr std::string_view kOp = "store_kv";

void check_arguments(const StoreKvArgs& args) {
  check_shape(kOp, "k", args.k, {kAnySize, kAnySize, kAnySize});
  check_shape(kOp, "v", args.v, {args.k.size(0), args.k.size(1), args.k.size(2)});
  check_dtype(kOp, "k", args.k, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  check_dtype(kOp, "v", args.v, {args.k.dtype()});
  const Device device = args.k.device();
  check_device(kOp, "v", args.v, device);
  check_last_contiguous(kOp, "k", args.k);
  check_last_contiguous(kOp, "v", args.v);
  check(args.k.size(1) > 0, kOp, ": k has no heads, expected one or more.");
  check_cache(kOp, args.k, args.k_cache, args.v_cache);
  const bool fp8 = is_fp8(args.k_cache.dtype());

  check_shape(kOp, "slot_mapping", args.slot_mapping, {kAnySize});
  check_dtype(kOp, "slot_mapping", args.slot_mapping, {DType::kInt32, DType::kInt64});
  check_device(kOp, "slot_mapping", args.slot_mapping, device);
  check(args.slot_mapping.size(0) <= args.k.size(0), kOp, ": slot_mapping has ",
        args.slot_mapping.size(0), " entries, expected at most k's ", args.k.size(0), " tokens.");

  const std::array<NamedTensor, 2> outputs{
      {{"k_cache", &args.k_cache}, {"v_cache", &args.v_cache}}};
  const std::array<NamedTensor, 5> inputs{{{"k", &args.k},
                                           {"v", &args.v},
                                           {"slot_mapping", &args.slot_mapping},
                                           {"k_scale", &args.k_scale},
                                           {"v_scale", &args.v_scale}}};
  check_outputs_apart(kOp, outputs, inputs);
  check_store_scale(kOp, "k_scale", args.k_scale, fp8, "k_cache", device, args.k.size(1));
  check_store_scale(kOp, "v_scale", args.v_scale, fp8, "v_cache", device, args.k.size(1));
}

void check_values_on_gpu(const StoreKvArgs& args, const Execution& execution) {
  HostValues host(execution);
  if (args.k_scale.defined())
    check_scale(kOp, "k_scale", host.of(args.k_scale), {}, args.k.size(1));
  if (args.v_scale.defined())
    check_scale(kOp, "v_scale", host.of(args.v_scale), {}, args.k.size(1));
  slots_of_mapping(kOp, host.of(args.slot_mapping), args.slot_mapping.size(0), args.k_cache);
}

}  // namespace

void store_kv(const StoreKvArgs& args, const Execution& execution) {
  static Counter calls("store_kv");
  check_arguments(args);
  const Device device = args.k.device();
  if (device.type == DeviceType::kCuda) {
    if (execution.check_values) check_values_on_gpu(args, execution);
    calls.add();
    return cuda::store_kv(args, execution);
  }
  const auto slots =
      slots_of_mapping(kOp, args.slot_mapping, args.slot_mapping.size(0), args.k_cache);
  calls.add();
  cpu::store_kv(args, slots, execution);
}

}  // namespace hpcattn
