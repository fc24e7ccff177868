// SPDX-License-Identifier: Apache-2.0
#include "hpcattn/rope.h"

#include "src/common/check.h"
#include "src/common/counter.h"
#include "src/cpu/rope.h"
#include "src/ops/rope_checks.h"

namespace hpcattn {

void rope_norm_store_kv(const RopeNormStoreKvArgs& args, const Execution& execution) {
  static Counter calls("rope_norm_store_kv");
  ops::check_rope_arguments(args);
  const Device device = args.q.device();
  if (device.type != DeviceType::kCpu) {
    throw Unsupported(message(ops::kRopeOp, ": q is on ", to_string(device),
                              ", expected cpu: this build has no kernels for other devices."));
  }
  const cpu::TokenPlaces places = ops::resolve_rope_tokens(args);
  calls.add();
  cpu::rope_norm_store_kv(args, places, execution);
}

}  // namespace hpcattn
