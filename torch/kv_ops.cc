// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <utility>

#include "hpcattn/rope.h"
#include "hpcattn/store.h"
#include "src/common/check.h"
#include "torch/ops.h"

namespace hpcattn::torch_ops {
namespace {

/// One of the named values, or InvalidArgument with all their names.
template <typename Value, std::size_t kCount>
Value choose(std::string_view op, std::string_view arg, const std::string& given,
             const std::pair<const char*, Value> (&choices)[kCount]) {
  std::string names;
  for (const auto& [name, value] : choices) {
    if (given == name) return value;
    names += message(names.empty() ? "'" : " or '", name, "'");
  }
  check(false, op, ": ", arg, " is '", given, "', expected ", names, ".");
  return choices[0].second;
}

std::array<std::int64_t, 3> mrope_of(std::string_view op,
                                     const std::optional<std::vector<std::int64_t>>& section) {
  std::array<std::int64_t, 3> result{};
  if (!section) return result;
  check(section->size() == 3, op, ": mrope_section has ", section->size(),
        " entries, expected 3 (pairs that follow each of the three positions).");
  std::copy(section->begin(), section->end(), result.begin());
  return result;
}

}  // namespace

void store_kv(const StableTensor& k, const StableTensor& v, const StableTensor& k_cache,
              const StableTensor& v_cache, const StableTensor& slot_mapping,
              const OptionalTensor& k_scale, const OptionalTensor& v_scale) {
  run([&] {
    Arguments args("store_kv");
    const StoreKvArgs store{.k = args.input("k", k),
                            .v = args.input("v", v),
                            .k_cache = args.output("k_cache", k_cache),
                            .v_cache = args.output("v_cache", v_cache),
                            .slot_mapping = args.input("slot_mapping", slot_mapping),
                            .k_scale = args.input("k_scale", k_scale),
                            .v_scale = args.input("v_scale", v_scale)};
    hpcattn::store_kv(store, args.execution());
  });
}

void rope_norm_store_kv(const StableTensor& q, const StableTensor& k, const StableTensor& v,
                        const StableTensor& cos_sin, const StableTensor& out_q,
                        const OptionalTensor& out_q_scale, const OptionalTensor& out_k,
                        const OptionalTensor& out_v, const OptionalTensor& k_cache,
                        const OptionalTensor& v_cache, const OptionalTensor& cleared,
                        const std::string& style, const OptionalTensor& positions,
                        const std::optional<std::vector<std::int64_t>>& mrope_section,
                        const OptionalTensor& cu_seqlens_q, const OptionalTensor& kv_lens,
                        const OptionalTensor& page_table, const OptionalTensor& slot_mapping,
                        const OptionalTensor& k_scale, const OptionalTensor& v_scale,
                        const OptionalTensor& q_scale, double upper_max,
                        const std::string& norm_policy, const std::string& norm_scope,
                        const OptionalTensor& q_norm_weight, const OptionalTensor& k_norm_weight,
                        std::optional<double> norm_eps) {
  run([&] {
    constexpr const char* kOp = "rope_norm_store_kv";
    Arguments args(kOp);
    RopeNormStoreKvArgs rope{
        .q = args.input("q", q),
        .k = args.input("k", k),
        .v = args.input("v", v),
        .cos_sin = args.input("cos_sin", cos_sin),
        .style = choose<RopeStyle>(
            kOp, "style", style,
            {{"neox", RopeStyle::kNeox}, {"interleaved", RopeStyle::kInterleaved}}),
        .positions = args.input("positions", positions),
        .mrope_section = mrope_of(kOp, mrope_section),
        .cu_seqlens_q = args.input("cu_seqlens_q", cu_seqlens_q),
        .kv_lens = args.input("kv_lens", kv_lens),
        .page_table = args.input("page_table", page_table),
        .slot_mapping = args.input("slot_mapping", slot_mapping),
        .k_cache = args.output("k_cache", k_cache),
        .v_cache = args.output("v_cache", v_cache),
        .k_scale = args.input("k_scale", k_scale),
        .v_scale = args.input("v_scale", v_scale),
        .out_q = args.output("out_q", out_q),
        .out_k = args.output("out_k", out_k),
        .out_v = args.output("out_v", out_v),
        .q_scale = args.input("q_scale", q_scale),
        .out_q_scale = args.output("out_q_scale", out_q_scale),
        .upper_max = upper_max,
        .cleared = args.output("cleared", cleared),
        .norm_policy = choose<QkNormPolicy>(kOp, "norm_policy", norm_policy,
                                            {{"none", QkNormPolicy::kNone},
                                             {"rope_then_norm", QkNormPolicy::kRopeThenNorm},
                                             {"norm_then_rope", QkNormPolicy::kNormThenRope}}),
        .norm_scope = choose<NormScope>(kOp, "norm_scope", norm_scope,
                                        {{"head", NormScope::kHead}, {"token", NormScope::kToken}}),
        .q_norm_weight = args.input("q_norm_weight", q_norm_weight),
        .k_norm_weight = args.input("k_norm_weight", k_norm_weight)};
    if (norm_eps) rope.norm_eps = *norm_eps;
    hpcattn::rope_norm_store_kv(rope, args.execution());
  });
}

}  // namespace hpcattn::torch_ops
