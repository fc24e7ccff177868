// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/rope.h"

#include <algorithm>

#include "kernels/tile/convert.h"
#include "src/common/check.h"
#include "src/common/counter.h"
#include "src/cuda/device.h"
#include "src/cuda/kernel_table.h"
#include "src/cuda/rope_pairs.h"
#include "src/cuda/views.h"

namespace hpcattn::cuda {
namespace {

/// Ctas of a multiprocessor for which the compiler leaves registers; it would spill for four.
constexpr int kCtasPerSm = 3;

const char* name_of(RopeNorm norm) {
  switch (norm) {
    case RopeNorm::kNone: return "kNone";
    case RopeNorm::kHead: return "kHead";
    case RopeNorm::kToken: return "kToken";
  }
  return "";
}

bool has_mrope(const RopeNormStoreKvArgs& args) {
  return args.mrope_section[0] + args.mrope_section[1] + args.mrope_section[2] != 0;
}

/// A lane's 8 pairs are neighbours in the table, aligned, and follow one position.
bool cos_sin_in_vectors(const RopeNormStoreKvArgs& args) {
  const bool sections_in_pieces = std::ranges::all_of(
      args.mrope_section, [](std::int64_t section) { return section % kLaneElements == 0; });
  return args.style == RopeStyle::kNeox && args.cos_sin.size(1) / 2 % kLaneElements == 0 &&
         sections_in_pieces && has_aligned_pieces(args.cos_sin);
}

/// Heads that a team takes of one token: several read its cosines once, but a step of few tokens is
/// over sooner when each head has a team of its own.
std::int32_t rows_per_team(std::int64_t num_tokens, std::int32_t num_rows, std::int32_t lanes,
                           int num_sms) {
  const std::int64_t teams_at_once = std::int64_t{num_sms} * kCtasPerSm * (kRopeThreads / lanes);
  const std::int64_t rounds = num_tokens * num_rows / teams_at_once;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(rounds, 1, std::min(num_rows, 8)));
}

}  // namespace

KernelVariant variant_of(const RopeSpec& spec) {
  return {
      .name = message("rope_norm_store_kv<{.dtype = ", name(spec.dtype),
                      ", .norm = ", name_of(spec.norm), "}>"),
      .source = message("#include \"kernels/fused/rope/kernel.cuh\"\n"
                        "extern \"C\" __global__ void __launch_bounds__(",
                        kRopeThreads, ", ", kCtasPerSm,
                        ") hpcattn_kernel(const __grid_constant__ hpcattn::RopeParams p) {\n"
                        "  hpcattn::rope<hpcattn::RopeSpec{.dtype = ",
                        source_name(spec.dtype),
                        ", .norm = hpcattn::RopeNorm::", name_of(spec.norm), "}>(p);\n}\n"),
      .threads = kRopeThreads,
  };
}

RopeSpec rope_spec(DType dtype, QkNormPolicy policy, NormScope scope) {
  if (policy == QkNormPolicy::kNone) return {.dtype = dtype, .norm = RopeNorm::kNone};
  return {.dtype = dtype, .norm = scope == NormScope::kHead ? RopeNorm::kHead : RopeNorm::kToken};
}

std::vector<KernelVariant> all_rope_variants() {
  std::vector<KernelVariant> variants;
  for (DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    for (RopeNorm norm : {RopeNorm::kNone, RopeNorm::kHead, RopeNorm::kToken}) {
      variants.push_back(variant_of(RopeSpec{.dtype = dtype, .norm = norm}));
    }
  }
  return variants;
}

RopeParams rope_params(const RopeNormStoreKvArgs& args, int num_sms, Fault* faults) {
  RopeParams p{
      .inputs = {rows_view(args.q), rows_view(args.k), rows_view(args.v)},
      .outputs = {rows_view(args.out_q), rows_view(args.out_k), rows_view(args.out_v)},
      .caches = {cache_view(args.k_cache), cache_view(args.v_cache)},
      .scales = {scale_view(args.q_scale), scale_view(args.k_scale), scale_view(args.v_scale)},
      .out_q_scale = rows_view(args.out_q_scale),
      .weights = {weight_view(args.q_norm_weight), weight_view(args.k_norm_weight)},
      .cos_sin = args.cos_sin.data_as<const char>(),
      .cos_sin_stride = args.cos_sin.stride(0) * size_bytes(args.cos_sin.dtype()),
      .cos_sin_dtype = args.cos_sin.dtype(),
      .cos_sin_vectors = cos_sin_in_vectors(args),
      .interleaved = args.style == RopeStyle::kInterleaved,
      .norm_first = args.norm_policy == QkNormPolicy::kNormThenRope,
      .mrope = has_mrope(args),
      .positions = index_view(args.positions),
      .cu_seqlens_q = index_view(args.cu_seqlens_q),
      .kv_lens = index_view(args.kv_lens),
      .page_table = index_view(args.page_table),
      .slot_mapping = index_view(args.slot_mapping),
      .num_tokens = args.q.size(0),
      .max_position = args.cos_sin.size(0),
      .eps = args.norm_eps,
      .upper_max = args.upper_max,
      .num_q_heads = static_cast<std::int32_t>(args.q.size(1)),
      .num_kv_heads = static_cast<std::int32_t>(args.k.size(1)),
      .head_dim = static_cast<std::int32_t>(args.q.size(2)),
      .rotary_dim = static_cast<std::int32_t>(args.cos_sin.size(1)),
      .cleared = args.cleared.data_as<std::int32_t>(),
      .num_cleared = args.cleared.defined() ? args.cleared.num_elements() : 0,
      .faults = faults,
  };
  if (args.cu_seqlens_q.defined()) p.num_requests = args.cu_seqlens_q.size(0) - 1;
  if (args.page_table.defined()) p.max_pages = args.page_table.size(1);
  if (args.k_cache.defined()) {
    p.num_pages = args.k_cache.size(0);
    p.page_size = args.k_cache.size(1);
    p.per_page = FastDivide(static_cast<std::uint32_t>(p.page_size));
  }
  for (std::size_t axis = 0; axis < args.mrope_section.size(); ++axis) {
    p.sections[axis] = static_cast<std::int32_t>(args.mrope_section[axis]);
  }
  p.rows_per_team = rows_per_team(p.num_tokens, p.num_rows(), rope_lanes(p.head_dim), num_sms);
  return p;
}

void rope_norm_store_kv(const RopeNormStoreKvArgs& args, const Execution& execution) {
  static Counter launches("cuda/fused/rope");
  static Counter pairs_launches("cuda/fused/rope_pairs");
  static KernelTable<RopeSpec> table;
  static KernelTable<RopePairsSpec> pairs_table;
  const int device = args.q.device().index;
  check_faults(device);
  if (args.q.size(0) == 0) {
    if (args.cleared.defined()) fill_pattern(args.cleared, 0, execution);
    return;
  }
  const int num_sms = device_info(device).num_sms;
  auto* faults = static_cast<Fault*>(fault_mailbox(device));
  const auto variant = [](const auto& wanted) { return variant_of(wanted); };
  const DeviceGuard guard(device);
  if (const auto pairs = rope_pairs_spec(args)) {
    const RopePairsParams params = rope_pairs_params(args, num_sms, faults);
    launch(pairs_table.get(device, *pairs, variant), {rope_pairs_ctas(params), 1, 1}, execution,
           params, /*programmatic=*/true);
    return pairs_launches.add();
  }
  const RopeParams params = rope_params(args, num_sms, faults);
  const RopeSpec spec = rope_spec(args.q.dtype(), args.norm_policy, args.norm_scope);
  std::int64_t ctas = params.num_tokens;  // a token's heads are normed together by one cta
  if (spec.norm != RopeNorm::kToken) {
    const int teams_of_cta = kRopeThreads / rope_lanes(params.head_dim);
    ctas = (params.num_tokens * params.teams_per_token() + teams_of_cta - 1) / teams_of_cta;
  }
  launch(table.get(device, spec, variant), {static_cast<unsigned>(ctas), 1, 1}, execution, params,
         /*programmatic=*/true);
  launches.add();
}

}  // namespace hpcattn::cuda
