// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/merge.h"

#include <algorithm>
#include <optional>

#include "src/common/check.h"
#include "src/common/counter.h"
#include "src/cuda/device.h"
#include "src/cuda/kernel_table.h"
#include "src/cuda/views.h"

namespace hpcattn::cuda {
namespace {

MergeView merge_view(const Tensor& partial, const Tensor& lse) {
  MergeView view{
      .data = partial.data_as<char>(),
      .token_stride = partial.stride(0) * size_bytes(partial.dtype()),
      .head_stride = partial.stride(1) * size_bytes(partial.dtype()),
      .vectors = has_aligned_pieces(partial),
  };
  if (lse.defined()) {
    view.lse = lse.data_as<char>();
    view.lse_token_stride = lse.stride(0) * size_bytes(lse.dtype());
    view.lse_head_stride = lse.stride(1) * size_bytes(lse.dtype());
  }
  return view;
}

}  // namespace

KernelVariant variant_of(const MergeSpec& spec) {
  return {
      .name = message("merge_partials<{.dtype = ", name(spec.dtype),
                      ", .out_dtype = ", name(spec.out_dtype), "}>"),
      .source = message("#include \"kernels/merge/kernel.cuh\"\n"
                        "extern \"C\" __global__ void __launch_bounds__(",
                        kMergeThreads,
                        ") hpcattn_kernel(const __grid_constant__ hpcattn::MergeParams p) {\n"
                        "  hpcattn::merge<hpcattn::MergeSpec{.dtype = ",
                        source_name(spec.dtype), ", .out_dtype = ", source_name(spec.out_dtype),
                        "}>(p);\n}\n"),
      .threads = kMergeThreads,
  };
}

MergeSpec merge_spec(DType dtype, DType out_dtype) {
  return {.dtype = dtype, .out_dtype = out_dtype};
}

std::vector<KernelVariant> all_merge_variants() {
  std::vector<KernelVariant> variants;
  for (DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    variants.push_back(variant_of(merge_spec(dtype, dtype)));
    if (dtype != DType::kFloat32) {
      variants.push_back(variant_of(merge_spec(dtype, DType::kFloat32)));
    }
  }
  return variants;
}

std::vector<MergeView> merge_views(const MergeArgs& args) {
  std::vector<MergeView> views;
  views.reserve(args.partials.size());
  for (std::size_t i = 0; i < args.partials.size(); ++i) {
    views.push_back(merge_view(args.partials[i], args.lses[i]));
  }
  return views;
}

MergeParams merge_params(const MergeArgs& args, const std::vector<MergeView>& views) {
  MergeParams p{
      .out = merge_view(args.out, args.lse),
      .num_rows = args.out.size(0) * args.out.size(1),
      .num_heads = args.out.size(1),
      .head_dim = args.out.size(2),
      .num_partials = static_cast<std::int32_t>(views.size()),
  };
  const std::size_t passed = std::min<std::size_t>(views.size(), kMergeInline);
  std::copy_n(views.begin(), passed, p.partials);
  return p;
}

void merge_partials(const MergeArgs& args, const Execution& execution) {
  static Counter launches("cuda/merge");
  static KernelTable<MergeSpec> table;
  const int device = args.out.device().index;
  check_faults(device);
  const std::vector<MergeView> views = merge_views(args);
  MergeParams params = merge_params(args, views);
  if (params.num_rows == 0) return;
  const DeviceGuard guard(device);
  std::optional<Workspace> table_of_views;
  if (views.size() > kMergeInline) {
    const std::size_t bytes = views.size() * sizeof(MergeView);
    copy_to_device(table_of_views.emplace(execution, device, bytes).data(), views.data(), bytes,
                   device, execution);
    params.more = static_cast<const MergeView*>(table_of_views->data());
  }
  const Kernel& kernel =
      table.get(device, merge_spec(args.partials.front().dtype(), args.out.dtype()),
                [](const MergeSpec& spec) { return variant_of(spec); });
  const int teams_of_cta = kMergeThreads / merge_lanes(params.head_dim);
  const auto ctas = static_cast<unsigned>((params.num_rows + teams_of_cta - 1) / teams_of_cta);
  launch(kernel, {ctas, 1, 1}, execution, params);
  launches.add();
}

}  // namespace hpcattn::cuda
