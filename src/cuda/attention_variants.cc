// SPDX-License-Identifier: Apache-2.0
// Which attention kernels there are, and their generated source.
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "src/common/check.h"
#include "src/cuda/attention.h"
#include "src/cuda/device_checks.h"
#include "src/cuda/views.h"
#include "src/ops/support.h"

namespace hpcattn::cuda {
namespace {

constexpr std::int64_t kKilobyte = 1024;

const char* text(bool value) { return value ? "true" : "false"; }

/// The spec as source writes it, with field names: what is compiled, cached and shown.
std::string source_of(const AttentionSpec& spec) {
  return message(
      "AttentionSpec{.head_dim = ", spec.head_dim, ", .q_dtype = ", source_name(spec.q_dtype),
      ", .kv_dtype = ", source_name(spec.kv_dtype), ", .softcap = ", text(spec.softcap),
      ", .alibi = ", text(spec.alibi), ", .unaligned_kv = ", text(spec.unaligned_kv),
      ", .checked = ", text(spec.checked), ", .shared_budget = ", spec.shared_budget, "}");
}

/// NVIDIA, CUDA C++ Programming Guide, technical specifications of compute capabilities.
DeviceInfo device_of(std::string_view arch) {
  DeviceInfo device;
  device.shared_bytes_per_sm = 228 * kKilobyte;
  if (arch.starts_with("sm_80")) device.shared_bytes_per_sm = 164 * kKilobyte;
  if (arch.starts_with("sm_86") || arch.starts_with("sm_89") || arch.starts_with("sm_12")) {
    device.shared_bytes_per_sm = 100 * kKilobyte;
  }
  device.shared_bytes_per_cta = device.shared_bytes_per_sm - kKilobyte;
  return device;
}

}  // namespace

int shared_budget(std::string_view arch) { return shared_budget(device_of(arch)); }

int shared_budget(const DeviceInfo& device) {
  // Each cta takes 1 KB for the system. 80 KB hold every head dim's smallest ring.
  constexpr std::int64_t kSystemBytes = kKilobyte;
  constexpr std::int64_t kEnough = 80 * kKilobyte;
  const std::int64_t half = device.shared_bytes_per_sm / plan::kCtasPerSm - kSystemBytes;
  return static_cast<int>(half >= kEnough ? std::min(half, device.shared_bytes_per_cta)
                                          : device.shared_bytes_per_cta);
}

AttentionDevice attention_device(const DeviceInfo& device) {
  return {.arch = arch_of(device),
          .shared_budget = shared_budget(device),
          .most_shared = device.shared_bytes_per_cta};
}

AttentionDevice attention_device(std::string_view arch) {
  const DeviceInfo device = device_of(arch);
  return {.arch = std::string(arch),
          .shared_budget = shared_budget(device),
          .most_shared = device.shared_bytes_per_cta};
}

AttentionSpec attention_spec(const AttentionGroup& group, const AttentionFeatures& features,
                             int shared_budget) {
  check_supported(group.q_dtype != DType::kFloat32, "attention on a GPU: q has dtype float32, ",
                  "expected float16, bfloat16 or float8_e4m3. Run float32 on the cpu.");
  return {.head_dim = group.head_dim,
          .q_dtype = group.q_dtype,
          .kv_dtype = group.kv_dtype,
          .softcap = features.softcap,
          .alibi = features.alibi,
          .unaligned_kv = features.unaligned_kv,
          .checked = device_checks(),
          .shared_budget = shared_budget};
}

KernelVariant variant_of(const AttentionSpec& spec) {
  const AttentionLayout layout = attention_layout(spec);
  check_supported(layout.fits(spec.head_dim), "attention on a GPU: ", spec.shared_budget,
                  " bytes of shared memory a cta are too few for head_dim ", spec.head_dim, ".");
  const std::string source = source_of(spec);
  return {.name = message("attention<", source, ">"),
          .source = message("#include \"kernels/generic/attention/kernel.cuh\"\n"
                            "extern \"C\" __global__ void __launch_bounds__(",
                            kAttentionThreads, ", ", plan::kCtasPerSm,
                            ") hpcattn_kernel(\n"
                            "    const __grid_constant__ hpcattn::AttentionParams p) {\n"
                            "  hpcattn::attention<hpcattn::",
                            source, ">(p);\n}\n"),
          .threads = kAttentionThreads,
          .shared_bytes = layout.shared_bytes()};
}

KernelVariant variant_of(const DecodeSpec& spec) {
  const std::string source =
      message("DecodeSpec{.attention = hpcattn::", source_of(spec.attention),
              ", .box_tokens = ", spec.box_tokens, ", .rows = ", spec.rows, "}");
  return {.name = message("decode<", source, ">"),
          .source = message("#include \"kernels/sm90/decode/kernel.cuh\"\n"
                            "extern \"C\" __global__ void __launch_bounds__(",
                            kDecodeThreads, ", ", plan::kCtasPerSm,
                            ") hpcattn_kernel(\n"
                            "    const __grid_constant__ hpcattn::DecodeParams p) {\n"
                            "  hpcattn::decode<hpcattn::",
                            source, ">(p);\n}\n"),
          .threads = kDecodeThreads,
          .shared_bytes = decode_layout(spec).shared_bytes};
}

PrefillSpec prefill_spec(const AttentionGroup& group, const AttentionFeatures& features,
                         std::int64_t most_shared) {
  return {.attention = attention_spec(group, features, static_cast<int>(most_shared)),
          .page_size = group.page_size};
}

KernelVariant variant_of(const PrefillSpec& spec) {
  const std::string source =
      message("PrefillSpec{.attention = hpcattn::", source_of(spec.attention),
              ", .page_size = ", spec.page_size, "}");
  const PrefillLayout layout = prefill_layout(spec);
  return {.name = message("prefill<", source, ">"),
          .source = message("#include \"kernels/sm90/prefill/kernel.cuh\"\n"
                            "extern \"C\" __global__ void __launch_bounds__(",
                            layout.launch_bound(),
                            ", 1) hpcattn_kernel(\n"
                            "    const __grid_constant__ hpcattn::PrefillParams p) {\n"
                            "  hpcattn::prefill<hpcattn::",
                            source, ">(p);\n}\n"),
          .threads = layout.threads(),
          .shared_bytes = layout.shared_bytes};
}

std::vector<KernelVariant> all_prefill_variants(std::string_view arch) {
  std::vector<KernelVariant> variants;
  if (!arch.starts_with("sm_90")) return variants;
  for (std::int64_t head_dim : ops::supported_head_dims()) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat8E4M3}) {
      std::vector<std::int64_t> page_sizes = {0};  // packed
      for (const std::int64_t page_size : ops::hopper_page_sizes()) page_sizes.push_back(page_size);
      for (const std::int64_t page_size : page_sizes) {
        for (int features = 0; features < 4; ++features) {
          AttentionGroup group;
          group.head_dim = static_cast<int>(head_dim);
          group.q_dtype = group.kv_dtype = dtype;
          group.page_size = static_cast<int>(page_size);
          const PrefillSpec spec =
              prefill_spec(group, {.softcap = (features & 1) != 0, .alibi = (features & 2) != 0},
                           device_of(arch).shared_bytes_per_cta);
          if (prefill_takes(spec)) variants.push_back(variant_of(spec));
        }
      }
    }
  }
  return variants;
}

namespace {

bool asked_for(std::string_view kernels) {
  static const std::string asked = [] {
    const char* value = std::getenv("HPCATTN_KERNELS");
    return std::string(value == nullptr ? "" : value);
  }();
  return asked == kernels;
}

/// Calls visit(spec) for each spec of the generic kernel.
template <typename Visit>
void for_each_attention_spec(std::string_view arch, const Visit& visit) {
  const int budget = shared_budget(arch);
  for (std::int64_t head_dim : ops::supported_head_dims()) {
    for (const ops::AttentionDTypes& row : ops::attention_dtype_table()) {
      if (row.q == DType::kFloat32) continue;
      for (DType kv : row.kv) {
        for (int features = 0; features < 8; ++features) {
          AttentionGroup group;
          group.head_dim = static_cast<int>(head_dim);
          group.q_dtype = row.q;
          group.kv_dtype = kv;
          visit(attention_spec(group,
                               {.softcap = (features & 1) != 0,
                                .alibi = (features & 2) != 0,
                                .unaligned_kv = (features & 4) != 0},
                               budget));
        }
      }
    }
  }
}

}  // namespace

std::optional<DecodeSpec> decode_spec(const AttentionSpec& attention, int page_size,
                                      std::int64_t rows, std::string_view arch) {
  const bool pages =
      page_size == 16 || page_size == 32 || page_size == 64 || page_size == 128 || page_size == 256;
  if (!arch.starts_with("sm_90") || asked_for("generic") || !pages || rows > kMostDecodeRows)
    return {};
  const int rows_of_pass = rows <= kMostDecodeRows / 2 ? kMostDecodeRows / 2 : kMostDecodeRows;
  const DecodeSpec spec{
      .attention = attention,
      .box_tokens = std::min(page_size, decode_tile_kv(attention.kv_dtype, rows_of_pass)),
      .rows = rows_of_pass};
  if (!decode_takes(spec)) return {};
  return spec;
}

std::vector<KernelVariant> all_attention_variants(std::string_view arch) {
  std::vector<KernelVariant> variants;
  for_each_attention_spec(arch,
                          [&](const AttentionSpec& spec) { variants.push_back(variant_of(spec)); });
  return variants;
}

std::vector<KernelVariant> all_decode_variants(std::string_view arch) {
  std::vector<KernelVariant> variants;
  for_each_attention_spec(arch, [&](const AttentionSpec& attention) {
    for (const int rows : {kMostDecodeRows / 2, kMostDecodeRows}) {
      const int most = decode_tile_kv(attention.kv_dtype, rows);
      for (int page_size = 16; page_size <= most; page_size *= 2) {
        const std::optional<DecodeSpec> spec = decode_spec(attention, page_size, rows, arch);
        if (spec) variants.push_back(variant_of(*spec));
      }
    }
  });
  return variants;
}

bool prefill_is_chosen(const PrefillSpec& spec, std::int64_t rows, std::int64_t fixed_split,
                       std::string_view arch) {
  if (!arch.starts_with("sm_90") || asked_for("generic") || !prefill_takes(spec)) return false;
  return asked_for("prefill") || (rows > kMostDecodeRows && fixed_split == 0);
}

}  // namespace hpcattn::cuda
