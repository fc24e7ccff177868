// SPDX-License-Identifier: Apache-2.0
#include "hpcattn/rope.h"

#include "src/common/check.h"
#include "src/common/counter.h"
#include "src/cpu/rope.h"
#include "src/cuda/rope.h"
#include "src/ops/check_tensor.h"
#include "src/ops/host_values.h"
#include "src/ops/rope_checks.h"

namespace hpcattn {
namespace {

void check_values_on_gpu(const RopeNormStoreKvArgs& args, const Execution& execution) {
  ops::HostValues host(execution);
  const std::int64_t num_kv_heads = args.k.size(1);
  const auto check_scale = [&](std::string_view arg, const Tensor& scale, std::int64_t num_heads) {
    if (scale.defined()) ops::check_scale(ops::kRopeOp, arg, host.of(scale), {}, num_heads);
  };
  check_scale("q_scale", args.q_scale, 1);
  check_scale("k_scale", args.k_scale, num_kv_heads);
  check_scale("v_scale", args.v_scale, num_kv_heads);
  RopeNormStoreKvArgs on_host = args;
  for (Tensor* tensor : {&on_host.positions, &on_host.cu_seqlens_q, &on_host.kv_lens,
                         &on_host.page_table, &on_host.slot_mapping}) {
    *tensor = host.of(*tensor);
  }
  ops::resolve_rope_tokens(on_host);
}

}  // namespace

void rope_norm_store_kv(const RopeNormStoreKvArgs& args, const Execution& execution) {
  static Counter calls("rope_norm_store_kv");
  ops::check_rope_arguments(args);
  const Device device = args.q.device();
  if (device.type == DeviceType::kCuda) {
    if (execution.check_values) check_values_on_gpu(args, execution);
    calls.add();
    return cuda::rope_norm_store_kv(args, execution);
  }
  const cpu::TokenPlaces places = ops::resolve_rope_tokens(args);
  calls.add();
  cpu::rope_norm_store_kv(args, places, execution);
}

}  // namespace hpcattn
