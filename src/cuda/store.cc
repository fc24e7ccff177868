// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/store.h"

#include "kernels/fused/store/piece.h"
#include "src/common/check.h"
#include "src/common/counter.h"
#include "src/cuda/device.h"
#include "src/cuda/kernel_table.h"
#include "src/cuda/views.h"

namespace hpcattn::cuda {

KernelVariant variant_of(const StoreSpec& spec) {
  return {
      .name = message("store_kv<{.dtype = ", name(spec.dtype),
                      ", .cache_dtype = ", name(spec.cache_dtype), "}>"),
      .source = message("#include \"kernels/fused/store/kernel.cuh\"\n"
                        "extern \"C\" __global__ void __launch_bounds__(",
                        kStoreThreads,
                        ") hpcattn_kernel(const __grid_constant__ hpcattn::StoreParams p) {\n"
                        "  hpcattn::store_kv<hpcattn::StoreSpec{.dtype = ",
                        source_name(spec.dtype), ", .cache_dtype = ", source_name(spec.cache_dtype),
                        "}>(p);\n}\n"),
      .threads = kStoreThreads,
  };
}

StoreSpec store_spec(DType dtype, DType cache_dtype) {
  return {.dtype = dtype, .cache_dtype = cache_dtype};
}

std::vector<KernelVariant> all_store_variants() {
  std::vector<KernelVariant> variants;
  for (DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    for (DType cache_dtype : {dtype, DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      variants.push_back(variant_of(store_spec(dtype, cache_dtype)));
    }
  }
  return variants;
}

StoreParams store_params(const StoreKvArgs& args, Fault* faults) {
  StoreParams p{
      .inputs = {rows_view(args.k), rows_view(args.v)},
      .caches = {cache_view(args.k_cache), cache_view(args.v_cache)},
      .scales = {scale_view(args.k_scale), scale_view(args.v_scale)},
      .slots = index_view(args.slot_mapping),
      .num_tokens = args.slot_mapping.size(0),
      .num_pages = args.k_cache.size(0),
      .page_size = args.k_cache.size(1),
      .num_heads = static_cast<std::int32_t>(args.k.size(1)),
      .pieces = static_cast<std::int32_t>(args.k.size(2) / kLaneElements),
      .faults = faults,
  };
  p.per_row = FastDivide(static_cast<std::uint32_t>(p.pieces));
  p.per_token = FastDivide(static_cast<std::uint32_t>(2 * p.num_heads * p.pieces));
  return p;
}

void store_kv(const StoreKvArgs& args, const Execution& execution) {
  static Counter launches("cuda/fused/store");
  static KernelTable<StoreSpec> table;
  const int device = args.k.device().index;
  check_faults(device);
  const StoreParams params = store_params(args, static_cast<Fault*>(fault_mailbox(device)));
  const std::int64_t pieces = num_store_pieces(params);
  if (pieces == 0) return;
  const DeviceGuard guard(device);
  const Kernel& kernel = table.get(device, store_spec(args.k.dtype(), args.k_cache.dtype()),
                                   [](const StoreSpec& spec) { return variant_of(spec); });
  const auto ctas = static_cast<unsigned>((pieces + kStoreThreads - 1) / kStoreThreads);
  launch(kernel, {ctas, 1, 1}, execution, params, /*programmatic=*/true);
  launches.add();
}

}  // namespace hpcattn::cuda
