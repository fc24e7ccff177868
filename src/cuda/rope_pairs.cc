// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/rope_pairs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "kernels/fused/rope_pairs/turn.h"
#include "src/common/check.h"
#include "src/cuda/rope.h"
#include "src/cuda/views.h"
#include "src/plan/row_tile.h"

namespace hpcattn::cuda {
namespace {

const char* name_of(PairsNorm norm) {
  switch (norm) {
    case PairsNorm::kNone: return "kNone";
    case PairsNorm::kBeforeRope: return "kBeforeRope";
    case PairsNorm::kAfterRope: return "kAfterRope";
  }
  return "";
}

PairsNorm norm_of(QkNormPolicy policy) {
  switch (policy) {
    case QkNormPolicy::kNone: return PairsNorm::kNone;
    case QkNormPolicy::kRopeThenNorm: return PairsNorm::kAfterRope;
    case QkNormPolicy::kNormThenRope: return PairsNorm::kBeforeRope;
  }
  return PairsNorm::kNone;
}

/// Epsilon times a power of two, as the kernel adds it.
float scaled_eps(double eps, float factor) {
  return static_cast<float>(eps * double{factor} * double{factor});
}

/// A lane's 8 pairs are whole, are neighbours in the table, and follow one position.
bool pairs_in_pieces(const RopeNormStoreKvArgs& args) {
  constexpr std::int64_t kElements = std::int64_t{2} * kLanePairs;
  const std::int64_t rotary_dim = args.cos_sin.size(1);
  return rotary_dim % kElements == 0 && (args.q.size(2) - rotary_dim) % kElements == 0 &&
         std::ranges::all_of(args.mrope_section,
                             [](std::int64_t section) { return section % kLanePairs == 0; });
}

/// Heads of each token that a step has, a power of two; its other teams have other tokens. With
/// `shares` few heads, so that more rows share what is looked up of their tokens; else neighbours.
/// Never so many that teams are idle for want of KV heads, nor so few that they are for want of
/// tokens.
std::int32_t step_heads_of(std::int64_t tokens, std::int64_t kv_heads, std::int64_t teams,
                           bool shares) {
  const auto at_most_teams = [teams](std::int64_t count) {
    return std::min(teams, std::int64_t(std::bit_floor(std::uint64_t(count))));
  };
  const std::int64_t fewest = teams / at_most_teams(tokens);
  return static_cast<std::int32_t>(std::max(fewest, shares ? 1 : at_most_teams(kv_heads)));
}

/// The steps of all tokens, as `p.step_heads` and the number of heads have it.
std::int64_t count_steps(RopePairsParams& p, std::int64_t tokens, std::int64_t teams) {
  p.step_heads_log2 = std::countr_zero(static_cast<unsigned>(p.step_heads));
  p.group_tokens = static_cast<std::int32_t>(teams) / p.step_heads;
  p.q_steps = plan::ceil_div(p.rope.num_q_heads, p.step_heads);
  p.kv_steps = plan::ceil_div(p.rope.num_kv_heads, p.step_heads);
  return plan::ceil_div<std::int64_t>(tokens, p.group_tokens) * p.num_steps();
}

/// Units of so many steps. Few: one step each, and all at once. Many: some rounds of as many as run
/// at once, all of the same length, so that the last round is as full as the others, and each long
/// enough that tokens are seldom looked up. Longer ones are better still for fp8, which has fewer
/// bytes to move beside its instructions; for 16 bits they lie too far apart in memory (measured:
/// docs/experiments/rope.md).
std::int64_t units_of_steps(std::int64_t steps, std::int64_t warps_at_once, DType out_q) {
  const std::int64_t fewest_steps = is_fp8(out_q) ? 64 : 16;
  const std::int64_t rounds =
      std::clamp<std::int64_t>(steps / (warps_at_once * fewest_steps), 1, kPairsMostRounds);
  return std::min(steps, rounds * warps_at_once);
}

}  // namespace

KernelVariant variant_of(const RopePairsSpec& spec) {
  const std::string interleaved = spec.interleaved ? "true" : "false";
  return {
      .name = message("rope_norm_store_kv_pairs<{.dtype = ", name(spec.dtype),
                      ", .norm = ", name_of(spec.norm), ", .interleaved = ", interleaved,
                      ", .lanes = ", spec.lanes, "}>"),
      .source =
          message("#include \"kernels/fused/rope_pairs/kernel.cuh\"\n"
                  "extern \"C\" __global__ void __launch_bounds__(",
                  kPairsThreads, ", ", kPairsCtasPerSm,
                  ") hpcattn_kernel(const __grid_constant__ hpcattn::RopePairsParams p) {\n"
                  "  hpcattn::rope_pairs<hpcattn::RopePairsSpec{.dtype = ",
                  source_name(spec.dtype), ", .norm = hpcattn::PairsNorm::", name_of(spec.norm),
                  ", .interleaved = ", interleaved, ", .lanes = ", spec.lanes, "}>(p);\n}\n"),
      .threads = kPairsThreads,
      .shared_bytes = kPairsShared,
  };
}

std::vector<RopePairsSpec> rope_pairs_specs(DType dtype, std::int64_t head_dim, QkNormPolicy policy,
                                            NormScope scope) {
  if (size_bytes(dtype) != 2) return {};
  if (policy != QkNormPolicy::kNone && scope != NormScope::kHead) return {};
  const PairsNorm norm = norm_of(policy);
  const int lanes = pairs_lanes(head_dim);
  return {{.dtype = dtype, .norm = norm, .interleaved = false, .lanes = lanes},
          {.dtype = dtype, .norm = norm, .interleaved = true, .lanes = lanes}};
}

std::optional<RopePairsSpec> rope_pairs_spec(const RopeNormStoreKvArgs& args) {
  const std::vector<RopePairsSpec> specs =
      rope_pairs_specs(args.q.dtype(), args.q.size(2), args.norm_policy, args.norm_scope);
  if (specs.empty() || !pairs_in_pieces(args)) return std::nullopt;
  for (const Tensor* tensor : {&args.q, &args.k, &args.v, &args.k_cache, &args.v_cache, &args.out_q,
                               &args.out_k, &args.out_v}) {
    if (tensor->defined() && !has_aligned_pieces(*tensor)) return std::nullopt;
  }
  for (const Tensor* weight : {&args.q_norm_weight, &args.k_norm_weight}) {
    if (!weight->defined()) continue;
    if (is_fp8(weight->dtype()) || !has_aligned_pieces(*weight)) return std::nullopt;
  }
  if (args.cos_sin.size(1) > 0 && !has_aligned_pieces(args.cos_sin)) return std::nullopt;
  const std::int64_t rows = args.q.size(0) * (args.q.size(1) + 2 * args.k.size(1));
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto has_far_heads = [&](const Tensor& tensor, int dim) {
    return tensor.defined() && std::abs(tensor.stride(dim)) > kMost / 64;
  };
  for (const Tensor* input : {&args.q, &args.k, &args.v}) {
    if (has_far_heads(*input, 0) || has_far_heads(*input, 1)) return std::nullopt;
  }
  for (const Tensor* output : {&args.out_q, &args.out_k, &args.out_v}) {
    if (has_far_heads(*output, 1)) return std::nullopt;
  }
  if (has_far_heads(args.out_q_scale, 0) || has_far_heads(args.out_q_scale, 1)) return std::nullopt;
  if (has_far_heads(args.k_cache, 2) || has_far_heads(args.v_cache, 2)) return std::nullopt;
  if (args.k_cache.defined() && args.k_cache.size(0) > kMost) return std::nullopt;
  if (rows > kMost / 2 || args.cos_sin.size(0) > kMost) return std::nullopt;
  return specs[args.style == RopeStyle::kInterleaved ? 1 : 0];
}

std::vector<KernelVariant> all_rope_pairs_variants() {
  std::vector<KernelVariant> variants;
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (auto policy :
         {QkNormPolicy::kNone, QkNormPolicy::kRopeThenNorm, QkNormPolicy::kNormThenRope}) {
      for (std::int64_t head_dim : {64, 128, 256}) {
        for (const auto& spec : rope_pairs_specs(dtype, head_dim, policy, NormScope::kHead)) {
          variants.push_back(variant_of(spec));
        }
      }
    }
  }
  return variants;
}

RopePairsParams rope_pairs_params(const RopeNormStoreKvArgs& args, int num_sms, Fault* faults) {
  RopePairsParams p{.rope = rope_params(args, num_sms, faults)};
  const std::int64_t tokens = args.q.size(0);
  const std::int64_t teams = pairs_teams(pairs_lanes(args.q.size(2)));
  const std::int64_t warps = std::int64_t{num_sms} * kPairsCtasPerSm * kPairsWarps;
  p.step_heads = step_heads_of(tokens, args.k.size(1), teams, false);
  std::int64_t steps = count_steps(p, tokens, teams);
  if (steps > warps) {
    p.step_heads = step_heads_of(tokens, args.k.size(1), teams, true);
    steps = count_steps(p, tokens, teams);
  }
  for (int kind : {kQueryRow, kKeyRow, kValueRow}) {
    const RowsView& rows = p.rope.inputs[kind];
    p.inputs[kind] = {.data = rows.data,
                      .token_stride = static_cast<std::int32_t>(rows.token_stride),
                      .head_stride = static_cast<std::int32_t>(rows.head_stride),
                      .step_stride = static_cast<std::int32_t>(rows.head_stride) * p.step_heads};
    p.output_strides[kind] = static_cast<std::int32_t>(p.rope.outputs[kind].head_stride);
  }
  for (int side : {0, 1}) {
    p.cache_strides[side] = static_cast<std::int32_t>(p.rope.caches[side].head_stride);
  }
  p.scale_strides[0] = static_cast<std::int32_t>(p.rope.out_q_scale.token_stride);
  p.scale_strides[1] = static_cast<std::int32_t>(p.rope.out_q_scale.head_stride);
  // Over a scale of its own, no number is so much smaller than the largest; but a norm after RoPE
  // may make the other of a pair small.
  const bool own_scales = is_fp8(args.out_q.dtype()) && !args.q_scale.defined() &&
                          args.norm_policy != QkNormPolicy::kRopeThenNorm;
  for (int kind : {kQueryRow, kKeyRow}) {
    if (kind == kQueryRow && own_scales) continue;
    const auto note = [&](const auto& view) {
      if (view.data == nullptr) return;
      p.doubtful_shares[kind] = std::max(p.doubtful_shares[kind], doubtful_share(view.dtype));
    };
    note(p.rope.outputs[kind]);
    if (kind == kKeyRow) note(p.rope.caches[0]);
  }
  const std::int64_t units = units_of_steps(steps, warps, args.out_q.dtype());
  p.steps_per_group = FastDivide(static_cast<std::uint32_t>(p.num_steps()));
  p.num_units = static_cast<std::int32_t>(units);
  p.unit_steps = static_cast<std::int32_t>(steps / units);
  p.longer_units = static_cast<std::int32_t>(steps % units);
  const double eps = args.norm_policy == QkNormPolicy::kNone ? 0.0 : args.norm_eps;
  p.eps[kInRange] = scaled_eps(eps, 1.0F);
  p.eps[kTinyRows] = scaled_eps(eps, kTinyRowScale);
  p.eps[kHugeRows] = scaled_eps(eps, kHugeRowScale);
  p.upper_max = static_cast<float>(args.upper_max);
  p.inverse_head_dim = 1.0F / static_cast<float>(args.q.size(2));
  p.inverse_upper_max = static_cast<float>(1.0 / args.upper_max);
  return p;
}

unsigned rope_pairs_ctas(const RopePairsParams& params) {
  return static_cast<unsigned>((params.num_units + kPairsWarps - 1) / kPairsWarps);
}

}  // namespace hpcattn::cuda
