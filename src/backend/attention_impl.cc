// SPDX-License-Identifier: Apache-2.0
#include "hpcattn/backend/attention_impl.h"

#include <limits>

#include "hpcattn/backend/kv_cache.h"
#include "hpcattn/plan.h"
#include "hpcattn/store.h"
#include "src/backend/fill.h"
#include "src/backend/memory.h"
#include "src/backend/reasons.h"
#include "src/common/check.h"
#include "src/ops/check_attention.h"
#include "src/ops/check_tensor.h"
#include "src/plan/plan.h"

namespace hpcattn {
namespace {

constexpr std::string_view kOp = "HpcAttentionImpl";

BackendRequest request_of(const HpcAttentionImplOptions& options) {
  BackendRequest request{.num_q_heads = options.num_heads,
                         .num_kv_heads = options.num_kv_heads,
                         .head_dim = options.head_size,
                         .kv_cache_dtype = options.kv_cache_dtype,
                         .attention_type = options.attention_type,
                         .scale = options.scale,
                         .window = options.sliding_window,
                         .softcap = options.logits_soft_cap.value_or(0.0),
                         .alibi = options.alibi_slopes.has_value(),
                         .sinks = options.sinks.defined()};
  // The model's dtype is not an argument here: one that goes with the cache stands for it, and
  // forward() looks at the tensors themselves.
  const DType kv =
      parse_kv_cache_dtype(options.kv_cache_dtype, request.dtype).value_or(request.dtype);
  if (is_wide_float(kv)) request.dtype = kv;
  return request;
}

/// No cache has been allocated yet: the engine measures memory.
bool is_profiling(const HpcAttentionForwardArgs& args) {
  return args.metadata == nullptr || (args.kv_cache.defined() && args.kv_cache.num_elements() == 0);
}

bool is_encoder(AttentionType type) {
  return type == AttentionType::kEncoder || type == AttentionType::kEncoderOnly;
}

/// One row for each row of a query that an earlier call of this step left, if it did.
void check_result_fits(const PrologueResult& result, const HpcAttentionForwardArgs& args) {
  check(
      result.query == args.query.data() && result.num_tokens == args.query.size(0), kOp,
      ": the prologue of layer '", args.layer->name, "' made a query of ", result.num_tokens,
      " tokens, and this query is ", [&] { return to_string(args.query); },
      result.query == args.query.data() ? "" : " in other memory",
      ". Pass the prologue's out_q on as it is.");
  check(!result.kv_written || result.kv_cache == args.kv_cache.data(), kOp,
        ": the prologue of layer '", args.layer->name,
        "' wrote another cache than kv_cache. Give both the same one.");
}

}  // namespace

HpcAttentionImpl::HpcAttentionImpl(HpcAttentionImplOptions options) : options_(std::move(options)) {
  refuse(kOp, HpcAttentionBackend::validate(request_of(options_)));
  if (options_.alibi_slopes) {
    check(std::int64_t(options_.alibi_slopes->size()) == options_.num_heads, kOp,
          ": alibi_slopes has ", options_.alibi_slopes->size(), " entries, expected ",
          options_.num_heads, " (num_heads).");
    const std::vector<float>& slopes = *options_.alibi_slopes;
    const std::size_t bytes = slopes.size() * sizeof(float);
    slopes_memory_ = allocate(options_.device, bytes);
    upload(options_.device, slopes_memory_.get(), slopes.data(), bytes);
    slopes_ = Tensor::contiguous(slopes_memory_.get(), DType::kFloat32, {options_.num_heads},
                                 options_.device);
  }
  if (options_.sinks.defined()) {
    ops::check_shape(kOp, "sinks", options_.sinks, {options_.num_heads});
    ops::check_dtype(kOp, "sinks", options_.sinks,
                     {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  }
}

void HpcAttentionImpl::forward(const HpcAttentionForwardArgs& args,
                               const Execution& execution) const {
  ops::check_shape(kOp, "output", args.output,
                   {ops::kAnySize, options_.num_heads, options_.head_size});
  ops::check_no_overlap(kOp, "output", args.output);
  const std::int64_t num_tokens = args.output.size(0);
  if (args.lse.defined()) {
    ops::check_shape(kOp, "lse", args.lse, {num_tokens, options_.num_heads});
    ops::check_dtype(kOp, "lse", args.lse, {DType::kFloat32});
    ops::check_device(kOp, "lse", args.lse, args.output.device());
  }
  if (is_profiling(args)) {
    fill_zero(args.output, execution);
    if (args.lse.defined()) {
      fill_float(args.lse, -std::numeric_limits<float>::infinity(), execution);
    }
    return;
  }
  check(args.layer != nullptr, kOp, ": layer is not given, expected its name and scales.");
  ops::check_shape(kOp, "query", args.query, {num_tokens, options_.num_heads, options_.head_size});
  if (args.key.defined() || args.value.defined()) {
    ops::check_shape(kOp, "key", args.key,
                     {ops::kAnySize, options_.num_kv_heads, options_.head_size});
    ops::check_shape(kOp, "value", args.value,
                     {args.key.size(0), options_.num_kv_heads, options_.head_size});
  }
  check(
      is_fp8(args.output.dtype()) == args.output_scale.defined(), kOp, ": output is ",
      name(args.output.dtype()), " and output_scale is ",
      [&] { return to_string(args.output_scale); },
      ", expected a scale for a float8 output and for no other.");
  if (is_encoder(options_.attention_type)) {
    encode(args, execution);
  } else {
    attend(args, execution);
  }
}

void HpcAttentionImpl::encode(const HpcAttentionForwardArgs& args,
                              const Execution& execution) const {
  check(args.key.defined(), kOp, ": key is not given, and encoder attention has no cache to read.");
  packed_attention({.q = args.query,
                    .k = args.key,
                    .v = args.value,
                    .cu_seqlens_q = args.metadata->cu_seqlens_q,
                    .cu_seqlens_k = args.metadata->cu_seqlens_q,
                    .out = args.output,
                    .lse = args.lse,
                    .options = attention_options(args, /*causal=*/false),
                    .plan = args.metadata->plan},
                   execution);
}

void HpcAttentionImpl::attend(const HpcAttentionForwardArgs& args,
                              const Execution& execution) const {
  const HpcAttnMetadata& metadata = *args.metadata;
  const LayerScales& layer = *args.layer;
  check(args.kv_cache.defined(), kOp, ": kv_cache is not given.");
  const DType kv_dtype =
      parse_kv_cache_dtype(options_.kv_cache_dtype, args.kv_cache.dtype()).value();
  const KvCacheViews cache =
      split_kv_cache(args.kv_cache, options_.num_kv_heads, options_.head_size, kv_dtype);

  std::optional<PrologueResult> prologue;
  if (args.workspace != nullptr) prologue = args.workspace->peek(layer.name, metadata.step);
  if (prologue) check_result_fits(*prologue, args);

  const bool cross = options_.attention_type == AttentionType::kEncoderDecoder;
  PagedAttentionArgs attention{.q = args.query,
                               .k_cache = cache.k,
                               .v_cache = cache.v,
                               .page_table = metadata.page_table,
                               .cu_seqlens_q = metadata.cu_seqlens_q,
                               .kv_lens = metadata.kv_lens,
                               .out = args.output,
                               .lse = args.lse,
                               .options = attention_options(args, metadata.causal && !cross),
                               .plan = metadata.plan};
  if (is_fp8(args.query.dtype())) {
    const bool from_prologue = prologue && prologue->q_scale.defined();
    attention.options.q_scale = from_prologue ? prologue->q_scale : layer.q_scale;
    check(attention.options.q_scale.defined(), kOp, ": query is ", name(args.query.dtype()),
          " and layer '", layer.name, "' has no Q scale: no prologue left one in step ",
          metadata.step, ", and layer.q_scale is not given.");
  }
  if (is_fp8(kv_dtype)) {
    attention.options.k_scale = layer.k_scale;
    attention.options.v_scale = layer.v_scale;
    check(layer.k_scale.defined() && layer.v_scale.defined(), kOp, ": the cache of layer '",
          layer.name, "' is ", name(kv_dtype),
          ", expected k_scale and v_scale (1 where K and V are not scaled).");
  }

  const bool shares = options_.kv_sharing_target_layer_name.has_value();
  const bool writes = !shares && !(prologue && prologue->kv_written);
  check(!writes || args.key.defined() || cross, kOp, ": key and value of layer '", layer.name,
        "' are not given, and no prologue of step ", metadata.step, " has written them.");
  if (writes && args.key.defined()) {
    // The store comes first, so what the attention would refuse is looked at before it.
    ops::check_paged_attention(attention);
    ops::check_paged_attention_values(attention, execution);
    // A GPU's plan says whose it is to the kernel alone.
    if (attention.plan.defined() && attention.plan.device().type == DeviceType::kCpu) {
      plan::view_for(attention.plan, group_of(attention), attention.cu_seqlens_q,
                     attention.kv_lens);
    }
    StoreKvArgs store{.k = args.key,
                      .v = args.value,
                      .k_cache = cache.k,
                      .v_cache = cache.v,
                      .slot_mapping = metadata.slot_mapping};
    store.k_scale = attention.options.k_scale;
    store.v_scale = attention.options.v_scale;
    store_kv(store, execution);
  }
  paged_attention(attention, execution);
  if (prologue) args.workspace->take(layer.name, metadata.step);
}

AttentionOptions HpcAttentionImpl::attention_options(const HpcAttentionForwardArgs& args,
                                                     bool causal) const {
  AttentionOptions options{.scale = options_.scale,
                           .causal = causal,
                           .window = options_.sliding_window,
                           .softcap = options_.logits_soft_cap.value_or(0.0)};
  check(
      !slopes_.defined() || slopes_.device() == args.output.device(), kOp,
      ": the ALiBi slopes are on ", [&] { return to_string(slopes_.device()); },
      " and output is on ", [&] { return to_string(args.output.device()); },
      ". Give HpcAttentionImplOptions::device as that.");
  options.alibi_slopes = slopes_;
  options.sinks = options_.sinks;
  options.out_scale = args.output_scale;
  return options;
}

}  // namespace hpcattn
