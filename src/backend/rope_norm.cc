// SPDX-License-Identifier: Apache-2.0
#include "hpcattn/backend/rope_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "hpcattn/backend/kv_cache.h"
#include "src/backend/fill.h"
#include "src/backend/memory.h"
#include "src/backend/reasons.h"
#include "src/common/check.h"
#include "src/common/float_bits.h"
#include "src/cuda/device.h"
#include "src/ops/check_tensor.h"

namespace hpcattn {
namespace {

constexpr std::string_view kOp = "HpcRopeNorm";

/// The weight of a name, checked.
const Tensor& find_weight(std::span<const NamedWeight> weights, std::string_view name,
                          std::int64_t size, Device device) {
  const auto weight = std::find_if(weights.begin(), weights.end(),
                                   [&](const NamedWeight& other) { return other.name == name; });
  check(weight != weights.end(), kOp, ": weight '", name, "' is not among the ", weights.size(),
        " that were loaded.");
  ops::check_shape(kOp, name, weight->tensor, {size});
  check(is_float(weight->tensor.dtype()), kOp, ": ", name, " has dtype ",
        hpcattn::name(weight->tensor.dtype()), ", expected a float one.");
  if (weight->tensor.device().type != DeviceType::kCpu) {
    ops::check_device(kOp, name, weight->tensor, device);
  }
  return weight->tensor;
}

/// A vector's numbers on the host.
std::vector<float> floats_of(const Tensor& weight) {
  if (weight.device().type == DeviceType::kCuda) {
    return floats_of(cuda::HostCopy(weight, Execution{}).tensor());
  }
  std::vector<float> floats(std::size_t(weight.size(0)));
  for (std::size_t i = 0; i < floats.size(); ++i) {
    floats[i] = load_float(weight.data(), weight.dtype(), std::int64_t(i) * weight.stride(0));
  }
  return floats;
}

void set_weight(const Tensor& weight, const std::vector<float>& floats) {
  upload(weight.device(), weight.data(), floats.data(), floats.size() * sizeof(float));
}

/// Some heads of packed rows, [num_tokens, num_heads, head_dim].
Tensor heads_of(const Tensor& qkv, std::int64_t first_head, std::int64_t num_heads,
                std::int64_t head_dim) {
  const Tensor columns = qkv.slice(1, first_head * head_dim, num_heads * head_dim);
  const std::int64_t sizes[] = {qkv.size(0), num_heads, head_dim};
  const std::int64_t strides[] = {qkv.stride(0), head_dim, 1};
  return {columns.data(), qkv.dtype(), sizes, strides, qkv.device()};
}

}  // namespace

HpcRopeNorm::HpcRopeNorm(HpcRopeNormOptions options) : options_(std::move(options)) {
  check(!options_.layer_name.empty(), kOp, ": layer_name is empty; results are kept by it.");
  check(options_.num_heads > 0 && options_.num_kv_heads > 0 && options_.head_dim > 0, kOp,
        ": num_heads ", options_.num_heads, ", num_kv_heads ", options_.num_kv_heads, ", head_dim ",
        options_.head_dim, ", expected 1 or more of each.");
  const Tensor& table = options_.cos_sin_cache;
  ops::check_shape(kOp, "cos_sin_cache", table, {ops::kAnySize, ops::kAnySize});
  check(table.size(1) % 2 == 0 && table.size(1) <= options_.head_dim, kOp, ": cos_sin_cache is ",
        to_string(table), ", expected an even rotary_dim of at most ", options_.head_dim,
        " (head_dim) columns.");
  check(norms() ? std::isfinite(options_.norm_eps) && options_.norm_eps >= 0.0
                : options_.norm_eps == -1.0,
        kOp, ": norm_eps is ", options_.norm_eps,
        norms() ? ", expected the model's own, 0 or above."
                : " and qk_norm_policy is none, so it would not be used. Leave it out.");
  const DType model_dtype = DType::kBFloat16;  // for "auto", which is as good as any here
  const auto kv = parse_kv_cache_dtype(options_.kv_cache_dtype, model_dtype);
  check_supported(
      kv.has_value(), kOp, ": kv_cache_dtype '", options_.kv_cache_dtype,
      "' is not known, expected one of HpcAttentionBackend::supported_kv_cache_dtypes().");
  check_supported(options_.query_quant == QueryQuant::kNone || is_fp8(*kv), kOp,
                  ": a float8 query needs a float8 KV cache, got kv_cache_dtype '",
                  options_.kv_cache_dtype, "'. Use QueryQuant::kNone.");
  if (norms()) {
    const bool token = options_.norm_scope == NormScope::kToken;
    const auto size = [&](std::int64_t heads) { return (token ? heads : 1) * options_.head_dim; };
    const std::int64_t q_size = size(options_.num_heads);
    const std::int64_t k_size = size(options_.num_kv_heads);
    MemoryPlan room;
    const std::size_t q = room.add(DType::kFloat32, {q_size});
    const std::size_t k = room.add(DType::kFloat32, {k_size});
    weights_memory_ = allocate(table.device(), room.bytes());
    q_weight_ = tensor_at(weights_memory_, q, DType::kFloat32, {q_size}, table.device());
    k_weight_ = tensor_at(weights_memory_, k, DType::kFloat32, {k_size}, table.device());
  }
}

ModuleSupport HpcRopeNorm::support(const BackendRequest& request) const {
  ModuleSupport answer{.refusals = HpcAttentionBackend::validate(request)};
  const auto require = [&](bool condition, const auto&... parts) {
    if (!condition) answer.refusals.push_back(message(parts...));
  };
  require(request.num_q_heads == options_.num_heads &&
              request.num_kv_heads == options_.num_kv_heads &&
              request.head_dim == options_.head_dim,
          "the layer has ", request.num_q_heads, ":", request.num_kv_heads, " heads of ",
          request.head_dim, ", and this prologue was made for ", options_.num_heads, ":",
          options_.num_kv_heads, " heads of ", options_.head_dim);
  require(request.kv_cache_dtype == options_.kv_cache_dtype, "kv_cache_dtype is '",
          request.kv_cache_dtype, "', and this prologue was made for '", options_.kv_cache_dtype,
          "'");
  require(request.attention_type == AttentionType::kDecoder,
          "only a decoder's attention has a cache and positions of its own");
  const DType query = request.query_dtype.value_or(request.dtype);
  require(is_fp8(query) == (options_.query_quant != QueryQuant::kNone), "query_dtype is ",
          name(query), ", and this prologue makes ",
          options_.query_quant == QueryQuant::kNone ? "one of the model's dtype" : "float8_e4m3");
  return answer;
}

void HpcRopeNorm::process_weights_after_loading(std::span<const NamedWeight> weights) {
  if (!norms()) return;
  const Device device = q_weight_.device();
  const Tensor& q = find_weight(weights, kQueryNormWeight, q_weight_.size(0), device);
  const Tensor& k = find_weight(weights, kKeyNormWeight, k_weight_.size(0), device);
  const std::vector<float> q_floats = floats_of(q);
  const std::vector<float> k_floats = floats_of(k);
  set_weight(q_weight_, q_floats);
  set_weight(k_weight_, k_floats);
  weights_loaded_ = true;
}

Tensor HpcRopeNorm::q_norm_weight() const { return q_weight_; }

Tensor HpcRopeNorm::k_norm_weight() const { return k_weight_; }

void HpcRopeNorm::forward(const HpcRopeNormForwardArgs& args, const Execution& execution) {
  ops::check_shape(kOp, "out_q", args.out_q,
                   {ops::kAnySize, options_.num_heads, options_.head_dim});
  ops::check_no_overlap(kOp, "out_q", args.out_q);
  ops::check_device(kOp, "out_q", args.out_q, options_.cos_sin_cache.device());
  const bool no_cache_yet = args.kv_cache.defined() && args.kv_cache.num_elements() == 0;
  if (args.metadata == nullptr || (options_.stores_kv && no_cache_yet)) {
    fill_zero(args.out_q, execution);
    return;
  }
  const HpcAttnMetadata& metadata = *args.metadata;
  check(args.workspace != nullptr, kOp, ": workspace is not given, and the attention of layer '",
        options_.layer_name, "' would not learn that its KV is written.");
  check(!args.workspace->peek(options_.layer_name, metadata.step), kOp, ": layer '",
        options_.layer_name, "' has run in step ", metadata.step, " already.");
  check(!norms() || weights_loaded_, kOp, ": the norm weights of layer '", options_.layer_name,
        "' have not been loaded. Call process_weights_after_loading() first.");

  RopeNormStoreKvArgs op = operator_args(args);
  const std::int64_t num_tokens = args.out_q.size(0);
  PrologueResult result{.kv_written = options_.stores_kv,
                        .num_tokens = num_tokens,
                        .query = args.out_q.data(),
                        .kv_cache = options_.stores_kv ? args.kv_cache.data() : nullptr};
  if (options_.query_quant == QueryQuant::kPerTokenHead) {
    result.q_scale = args.workspace->reserve_q_scale(options_.layer_name, metadata.step, num_tokens,
                                                     options_.num_heads);
    op.out_q_scale = result.q_scale.slice(0, 0, op.q.size(0));
  }
  rope_norm_store_kv(op, execution);

  // Rows that the step's slots do not reach are padding of the engine's.
  const std::int64_t padding = num_tokens - op.q.size(0);
  fill_zero(args.out_q.slice(0, op.q.size(0), padding), execution);
  if (result.q_scale.defined()) {
    fill_float(result.q_scale.slice(0, op.q.size(0), padding), 1.0F, execution);
  }
  args.workspace->put(options_.layer_name, metadata.step, result);
}

RopeNormStoreKvArgs HpcRopeNorm::operator_args(const HpcRopeNormForwardArgs& args) const {
  const HpcAttnMetadata& metadata = *args.metadata;
  const std::int64_t num_tokens = args.out_q.size(0);
  const std::int64_t heads = options_.num_heads;
  const std::int64_t kv_heads = options_.num_kv_heads;
  ops::check_shape(kOp, "qkv", args.qkv, {num_tokens, (heads + 2 * kv_heads) * options_.head_dim});
  ops::check_last_contiguous(kOp, "qkv", args.qkv);
  const bool quantises = options_.query_quant != QueryQuant::kNone;
  const DType out_dtype = quantises ? DType::kFloat8E4M3 : args.qkv.dtype();
  ops::check_dtype(kOp, "out_q", args.out_q, {out_dtype});

  // Slots tell how many rows may be live; the others are padding of the engine's.
  ops::check_shape(kOp, "slot_mapping", metadata.slot_mapping, {ops::kAnySize});
  const std::int64_t live = std::min(num_tokens, metadata.slot_mapping.size(0));
  const Tensor qkv = args.qkv.slice(0, 0, live);
  const auto first_rows = [&](const Tensor& tensor) {
    return tensor.defined() && tensor.rank() > 0 && tensor.size(0) > live ? tensor.slice(0, 0, live)
                                                                          : tensor;
  };

  RopeNormStoreKvArgs op;
  op.q = heads_of(qkv, 0, heads, options_.head_dim);
  op.k = heads_of(qkv, heads, kv_heads, options_.head_dim);
  op.v = heads_of(qkv, heads + kv_heads, kv_heads, options_.head_dim);
  op.cos_sin = options_.cos_sin_cache;
  op.style = options_.style;
  op.mrope_section = options_.mrope_section;
  op.cu_seqlens_q = metadata.cu_seqlens_q;
  op.kv_lens = metadata.kv_lens;
  op.page_table = metadata.page_table;
  op.slot_mapping = first_rows(metadata.slot_mapping);
  op.out_q = first_rows(args.out_q);
  op.out_k = first_rows(args.out_k);
  op.out_v = first_rows(args.out_v);
  op.upper_max = options_.upper_max;
  op.norm_policy = options_.qk_norm_policy;
  op.norm_scope = options_.norm_scope;
  op.q_norm_weight = q_norm_weight();
  op.k_norm_weight = k_norm_weight();
  op.norm_eps = options_.norm_eps;
  if (args.positions.defined()) {
    const int tokens_dim = args.positions.rank() - 1;
    const bool longer = tokens_dim >= 0 && args.positions.size(tokens_dim) > live;
    op.positions = longer ? args.positions.slice(tokens_dim, 0, live) : args.positions;
  }

  const DType kv_dtype = parse_kv_cache_dtype(options_.kv_cache_dtype, args.qkv.dtype()).value();
  if (options_.stores_kv) {
    check(args.kv_cache.defined(), kOp, ": kv_cache is not given, and layer '", options_.layer_name,
          "' stores K and V.");
    const KvCacheViews cache = split_kv_cache(args.kv_cache, kv_heads, options_.head_dim, kv_dtype);
    op.k_cache = cache.k;
    op.v_cache = cache.v;
  }
  if (is_fp8(kv_dtype) && (options_.stores_kv || op.out_k.defined())) {
    check(
        args.scales != nullptr && args.scales->k_scale.defined() && args.scales->v_scale.defined(),
        kOp, ": the cache of layer '", options_.layer_name, "' is ", name(kv_dtype),
        ", expected k_scale and v_scale (1 where K and V are not scaled).");
    op.k_scale = args.scales->k_scale;
    op.v_scale = args.scales->v_scale;
  }
  if (options_.query_quant == QueryQuant::kStatic) {
    check(args.scales != nullptr && args.scales->q_scale.defined(), kOp, ": layer '",
          options_.layer_name,
          "' quantises its query by a static scale, and scales.q_scale is not given.");
    op.q_scale = args.scales->q_scale;
  }
  return op;
}

}  // namespace hpcattn
