// SPDX-License-Identifier: Apache-2.0
#include "hpcattn/attention.h"

#include "hpcattn/merge.h"
#include "torch/ops.h"

namespace hpcattn::torch_ops {
namespace {

AttentionOptions options_of(Arguments& args, double scale, bool causal,
                            std::optional<std::int64_t> window, double softcap,
                            const OptionalTensor& alibi_slopes, const OptionalTensor& sinks,
                            const OptionalTensor& q_scale, const OptionalTensor& k_scale,
                            const OptionalTensor& v_scale, const OptionalTensor& out_scale) {
  return {.scale = scale,
          .causal = causal,
          .window = window,
          .softcap = softcap,
          .alibi_slopes = args.input("alibi_slopes", alibi_slopes),
          .sinks = args.input("sinks", sinks),
          .q_scale = args.input("q_scale", q_scale),
          .k_scale = args.input("k_scale", k_scale),
          .v_scale = args.input("v_scale", v_scale),
          .out_scale = args.input("out_scale", out_scale)};
}

}  // namespace

void paged_attention(const StableTensor& q, const StableTensor& k_cache,
                     const StableTensor& v_cache, const StableTensor& page_table,
                     const StableTensor& cu_seqlens_q, const StableTensor& kv_lens,
                     const StableTensor& out, const OptionalTensor& lse, double scale, bool causal,
                     std::optional<std::int64_t> window, double softcap,
                     const OptionalTensor& alibi_slopes, const OptionalTensor& sinks,
                     const OptionalTensor& q_scale, const OptionalTensor& k_scale,
                     const OptionalTensor& v_scale, const OptionalTensor& out_scale,
                     const OptionalTensor& plan, std::int64_t fixed_split) {
  run([&] {
    Arguments args("paged_attention");
    // Taken in the order of the schema: the first tensor says where all of them must be.
    const PagedAttentionArgs attention{
        .q = args.input("q", q),
        .k_cache = args.input("k_cache", k_cache),
        .v_cache = args.input("v_cache", v_cache),
        .page_table = args.input("page_table", page_table),
        .cu_seqlens_q = args.input("cu_seqlens_q", cu_seqlens_q),
        .kv_lens = args.input("kv_lens", kv_lens),
        .out = args.output("out", out),
        .lse = args.output("lse", lse),
        .options = options_of(args, scale, causal, window, softcap, alibi_slopes, sinks, q_scale,
                              k_scale, v_scale, out_scale),
        .plan = args.input("plan", plan),
        .fixed_split = fixed_split};
    hpcattn::paged_attention(attention, args.execution());
  });
}

void packed_attention(const StableTensor& q, const StableTensor& k, const StableTensor& v,
                      const StableTensor& cu_seqlens_q, const StableTensor& cu_seqlens_k,
                      const StableTensor& out, const OptionalTensor& lse, double scale, bool causal,
                      std::optional<std::int64_t> window, double softcap,
                      const OptionalTensor& alibi_slopes, const OptionalTensor& sinks,
                      const OptionalTensor& q_scale, const OptionalTensor& k_scale,
                      const OptionalTensor& v_scale, const OptionalTensor& out_scale,
                      const OptionalTensor& plan, std::int64_t fixed_split) {
  run([&] {
    Arguments args("packed_attention");
    const PackedAttentionArgs attention{
        .q = args.input("q", q),
        .k = args.input("k", k),
        .v = args.input("v", v),
        .cu_seqlens_q = args.input("cu_seqlens_q", cu_seqlens_q),
        .cu_seqlens_k = args.input("cu_seqlens_k", cu_seqlens_k),
        .out = args.output("out", out),
        .lse = args.output("lse", lse),
        .options = options_of(args, scale, causal, window, softcap, alibi_slopes, sinks, q_scale,
                              k_scale, v_scale, out_scale),
        .plan = args.input("plan", plan),
        .fixed_split = fixed_split};
    hpcattn::packed_attention(attention, args.execution());
  });
}

void merge_partials(const std::vector<StableTensor>& partials,
                    const std::vector<StableTensor>& lses, const StableTensor& out,
                    const OptionalTensor& lse) {
  run([&] {
    Arguments args("merge_partials");
    const MergeArgs merge{.partials = args.inputs("partials", partials),
                          .lses = args.inputs("lses", lses),
                          .out = args.output("out", out),
                          .lse = args.output("lse", lse)};
    hpcattn::merge_partials(merge, args.execution());
  });
}

}  // namespace hpcattn::torch_ops
