// SPDX-License-Identifier: Apache-2.0
#include "src/ops/rope_checks.h"

#include <array>
#include <cmath>

#include "src/common/check.h"
#include "src/ops/check_tensor.h"
#include "src/ops/overlap.h"
#include "src/ops/store_checks.h"

namespace hpcattn::ops {
namespace {

constexpr std::string_view kOp = kRopeOp;

bool has_norm(const RopeNormStoreKvArgs& args) { return args.norm_policy != QkNormPolicy::kNone; }

bool has_mrope(const RopeNormStoreKvArgs& args) {
  for (std::int64_t section : args.mrope_section) {
    if (section != 0) return true;
  }
  return false;
}

void check_index(std::string_view arg, const Tensor& tensor,
                 std::initializer_list<std::int64_t> sizes, Device device) {
  check_shape(kOp, arg, tensor, sizes);
  check_dtype(kOp, arg, tensor, {DType::kInt32, DType::kInt64});
  check_device(kOp, arg, tensor, device);
}

void check_options(const RopeNormStoreKvArgs& args) {
  const auto policy = static_cast<int>(args.norm_policy);
  check(policy >= 0 && policy <= 2, kOp, ": norm_policy is ", policy,
        ", expected 0 (none), 1 (RoPE, then norm) or 2 (norm, then RoPE).");
  const auto style = static_cast<int>(args.style);
  check(style == 0 || style == 1, kOp, ": style is ", style,
        ", expected 0 (NeoX) or 1 (interleaved).");
  const auto scope = static_cast<int>(args.norm_scope);
  check(scope == 0 || scope == 1, kOp, ": norm_scope is ", scope,
        ", expected 0 (head) or 1 (token).");
  if (has_norm(args)) {
    check(args.norm_eps != -1.0, kOp,
          ": norm_eps is not given, needed for a norm_policy other than none. "
          "Take it from the model's config (rms_norm_eps).");
    check(std::isfinite(args.norm_eps) && args.norm_eps >= 0.0, kOp, ": norm_eps is ",
          args.norm_eps, ", expected a finite number of 0 or more.");
  } else {
    check(args.norm_eps == -1.0, kOp, ": norm_eps is ", args.norm_eps,
          " and norm_policy is none, so it would not be used. Leave it out, or choose a policy.");
  }
  check(args.upper_max > 0.0 && args.upper_max <= 448.0, kOp, ": upper_max is ", args.upper_max,
        ", expected above 0 and at most 448, the largest float8_e4m3.");
}

void check_qkv(const RopeNormStoreKvArgs& args) {
  check_shape(kOp, "q", args.q, {kAnySize, kAnySize, kAnySize});
  check_dtype(kOp, "q", args.q, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  check_last_contiguous(kOp, "q", args.q);
  check_shape(kOp, "k", args.k, {args.q.size(0), kAnySize, args.q.size(2)});
  check_shape(kOp, "v", args.v, {args.q.size(0), args.k.size(1), args.q.size(2)});
  const std::array<NamedTensor, 2> others{{{"k", &args.k}, {"v", &args.v}}};
  for (const auto& [arg, tensor] : others) {
    check(tensor->dtype() == args.q.dtype(), kOp, ": ", arg, " has dtype ", name(tensor->dtype()),
          ", expected ", name(args.q.dtype()), " (as q has).");
    check_device(kOp, arg, *tensor, args.q.device());
    check_last_contiguous(kOp, arg, *tensor);
  }
  const std::int64_t num_q_heads = args.q.size(1);
  const std::int64_t num_kv_heads = args.k.size(1);
  check(num_q_heads > 0 && num_kv_heads > 0 && num_q_heads % num_kv_heads == 0, kOp, ": q has ",
        num_q_heads, " heads and k ", num_kv_heads,
        ", expected a multiple of k's, one or more of each.");
  check_head_dim(kOp, args.q.size(2));
}

void check_cos_sin(const RopeNormStoreKvArgs& args) {
  check_shape(kOp, "cos_sin", args.cos_sin, {kAnySize, kAnySize});
  check_dtype(kOp, "cos_sin", args.cos_sin, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  check_device(kOp, "cos_sin", args.cos_sin, args.q.device());
  check_last_contiguous(kOp, "cos_sin", args.cos_sin);
  const std::int64_t rotary_dim = args.cos_sin.size(1);
  check(rotary_dim % 2 == 0, kOp, ": cos_sin has rotary_dim ", rotary_dim,
        ", expected an even number: its first half is cos, its second sin.");
  check(rotary_dim <= args.q.size(2), kOp, ": cos_sin has rotary_dim ", rotary_dim,
        ", over q's head_dim ", args.q.size(2), ".");
  if (!has_mrope(args)) return;
  std::int64_t pairs = 0;
  for (std::int64_t section : args.mrope_section) {
    check(section >= 0 && section <= rotary_dim / 2, kOp, ": mrope_section has an entry ", section,
          ", expected 0 to ", rotary_dim / 2, ", rotary_dim / 2.");
    pairs += section;
  }
  check(pairs == rotary_dim / 2, kOp, ": mrope_section sums to ", pairs, ", expected ",
        rotary_dim / 2, ", rotary_dim / 2.");
  check(args.positions.defined(), kOp,
        ": mrope_section is given without positions, expected positions [3, ", args.q.size(0),
        "].");
}

void check_one_weight(std::string_view arg, const Tensor& weight, const RopeNormStoreKvArgs& args,
                      std::int64_t num_heads) {
  if (!has_norm(args)) {
    check(
        !weight.defined(), kOp, ": ", arg,
        " is given and norm_policy is none, so it would not be used. Leave it out, or choose a policy.");
    return;
  }
  const bool by_token = args.norm_scope == NormScope::kToken;
  check_shape(kOp, arg, weight, {args.q.size(2) * (by_token ? num_heads : 1)});
  check_dtype(
      kOp, arg, weight,
      {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3, DType::kFloat8E5M2});
  check_device(kOp, arg, weight, args.q.device());
}

/// Outputs with a row for each token and head, of q's dtype or of another that fits.
void check_output(std::string_view arg, const Tensor& output, const Tensor& like, bool other_fits,
                  std::string_view other) {
  check_shape(kOp, arg, output, {like.size(0), like.size(1), like.size(2)});
  check(output.dtype() == like.dtype() || other_fits, kOp, ": ", arg, " has dtype ",
        name(output.dtype()), ", expected ", name(like.dtype()), " (as q has) or ", other, ".");
  check_device(kOp, arg, output, like.device());
  check_last_contiguous(kOp, arg, output);
  check_no_overlap(kOp, arg, output);
}

void check_out_q(const RopeNormStoreKvArgs& args) {
  const DType own = args.q.dtype();
  check_output("out_q", args.out_q, args.q, args.out_q.dtype() == DType::kFloat8E4M3,
               "float8_e4m3");
  const bool fp8 = is_fp8(args.out_q.dtype());
  check(fp8 || (!args.q_scale.defined() && !args.out_q_scale.defined()), kOp, ": ",
        args.q_scale.defined() ? "q_scale" : "out_q_scale", " is given and out_q is ", name(own),
        ", so it would not be used. Leave it out, or give a float8_e4m3 out_q.");
  check(
      !fp8 || args.q_scale.defined() || args.out_q_scale.defined(), kOp,
      ": out_q is float8_e4m3 and neither q_scale nor out_q_scale is given. Give q_scale [1] to use that "
      "scale, or out_q_scale [",
      args.q.size(0), ", ", args.q.size(1), "] to get the one of each row.");
  if (args.q_scale.defined()) {
    check_shape(kOp, "q_scale", args.q_scale, {1});
    check_scale(kOp, "q_scale", args.q_scale, args.q.device(), 1);
  }
  if (args.out_q_scale.defined()) {
    check_shape(kOp, "out_q_scale", args.out_q_scale, {args.q.size(0), args.q.size(1)});
    check_dtype(kOp, "out_q_scale", args.out_q_scale, {DType::kFloat32});
    check_device(kOp, "out_q_scale", args.out_q_scale, args.q.device());
    check_no_overlap(kOp, "out_q_scale", args.out_q_scale);
  }
}

void check_cleared(const RopeNormStoreKvArgs& args) {
  if (!args.cleared.defined()) return;
  check_dtype(kOp, "cleared", args.cleared, {DType::kInt32});
  check_device(kOp, "cleared", args.cleared, args.q.device());
  check(
      args.cleared.is_contiguous(), kOp, ": cleared is ", [&] { return to_string(args.cleared); },
      " with gaps between its entries, expected a contiguous tensor.");
}

void check_kv_outputs(const RopeNormStoreKvArgs& args) {
  const bool has_cache = args.k_cache.defined();
  check(has_cache == args.v_cache.defined(), kOp, ": ", has_cache ? "k_cache" : "v_cache",
        " is given alone, expected k_cache and v_cache, or neither where nothing is stored.");
  if (has_cache) check_cache(kOp, args.k, args.k_cache, args.v_cache);

  const auto check_one = [&](std::string_view arg, const Tensor& output, const Tensor& cache,
                             std::string_view scale_arg, const Tensor& scale,
                             std::string_view target) {
    if (output.defined() && has_cache) {
      const bool as_cache = output.dtype() == cache.dtype();
      check_output(arg, output, args.k, as_cache, name(cache.dtype()));
    } else if (output.defined()) {
      check_output(arg, output, args.k, is_fp8(output.dtype()), "float8_e4m3 or float8_e5m2");
    }
    const bool fp8 =
        (has_cache && is_fp8(cache.dtype())) || (output.defined() && is_fp8(output.dtype()));
    check_store_scale(kOp, scale_arg, scale, fp8, target, args.q.device(), args.k.size(1));
  };
  check_one("out_k", args.out_k, args.k_cache, "k_scale", args.k_scale, "k_cache and out_k");
  check_one("out_v", args.out_v, args.v_cache, "v_scale", args.v_scale, "v_cache and out_v");
}

void check_batch(const RopeNormStoreKvArgs& args) {
  const Device device = args.q.device();
  const std::int64_t num_tokens = args.q.size(0);
  if (args.positions.defined() && has_mrope(args))
    check_index("positions", args.positions, {3, num_tokens}, device);
  if (args.positions.defined() && !has_mrope(args))
    check_index("positions", args.positions, {num_tokens}, device);
  if (args.slot_mapping.defined())
    check_index("slot_mapping", args.slot_mapping, {num_tokens}, device);

  const bool places_from_pages = args.k_cache.defined() && !args.slot_mapping.defined();
  const bool needs_lengths = !args.positions.defined() || places_from_pages;
  const char* reason = args.positions.defined() ? "slot_mapping is not" : "positions are not";
  check(!needs_lengths || (args.cu_seqlens_q.defined() && args.kv_lens.defined()), kOp, ": ",
        args.cu_seqlens_q.defined() ? "kv_lens" : "cu_seqlens_q", " is not given, needed where ",
        reason, ". Give cu_seqlens_q and kv_lens.");
  check(!places_from_pages || args.page_table.defined(), kOp,
        ": page_table is not given, needed for a cache without slot_mapping.");
  if (!args.cu_seqlens_q.defined()) {
    check(!args.kv_lens.defined() && !args.page_table.defined(), kOp, ": ",
          args.kv_lens.defined() ? "kv_lens" : "page_table",
          " is given without cu_seqlens_q, expected both.");
    return;
  }
  check_index("cu_seqlens_q", args.cu_seqlens_q, {kAnySize}, device);
  check(args.cu_seqlens_q.size(0) > 0, kOp,
        ": cu_seqlens_q is empty, expected [num_requests + 1] with 0 as its first entry.");
  const std::int64_t num_requests = args.cu_seqlens_q.size(0) - 1;
  if (args.kv_lens.defined()) check_index("kv_lens", args.kv_lens, {num_requests}, device);
  if (args.page_table.defined())
    check_index("page_table", args.page_table, {num_requests, kAnySize}, device);
}

void check_memory(const RopeNormStoreKvArgs& args) {
  const std::array<NamedTensor, 7> outputs{{{"out_q", &args.out_q},
                                            {"out_q_scale", &args.out_q_scale},
                                            {"k_cache", &args.k_cache},
                                            {"v_cache", &args.v_cache},
                                            {"out_k", &args.out_k},
                                            {"out_v", &args.out_v},
                                            {"cleared", &args.cleared}}};
  const std::array<NamedTensor, 14> inputs{{{"q", &args.q},
                                            {"k", &args.k},
                                            {"v", &args.v},
                                            {"cos_sin", &args.cos_sin},
                                            {"positions", &args.positions},
                                            {"cu_seqlens_q", &args.cu_seqlens_q},
                                            {"kv_lens", &args.kv_lens},
                                            {"page_table", &args.page_table},
                                            {"slot_mapping", &args.slot_mapping},
                                            {"k_scale", &args.k_scale},
                                            {"v_scale", &args.v_scale},
                                            {"q_scale", &args.q_scale},
                                            {"q_norm_weight", &args.q_norm_weight},
                                            {"k_norm_weight", &args.k_norm_weight}}};
  const std::array<InPlacePair, 3> in_place{
      {{&args.out_q, &args.q}, {&args.out_k, &args.k}, {&args.out_v, &args.v}}};
  check_outputs_apart(kOp, outputs, inputs, in_place);
}

}  // namespace

void check_rope_arguments(const RopeNormStoreKvArgs& args) {
  check_options(args);
  check_qkv(args);
  check_cos_sin(args);
  check_one_weight("q_norm_weight", args.q_norm_weight, args, args.q.size(1));
  check_one_weight("k_norm_weight", args.k_norm_weight, args, args.k.size(1));
  check_out_q(args);
  check_cleared(args);
  check_kv_outputs(args);
  check_batch(args);
  check_memory(args);
}

}  // namespace hpcattn::ops
