// SPDX-License-Identifier: Apache-2.0
// The fused prologue in front of a TestLayer, for the backend's tests.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "src/backend/test_layer.h"
#include "src/cpu/reference/rope.h"
#include "src/testing/compare.h"

namespace hpcattn::testkit {

/// cos and sin of position * base^(-2 i / rotary_dim).
inline GuardedTensor rope_table(std::int64_t max_position, std::int64_t rotary_dim) {
  GuardedTensor table(DType::kFloat32, {max_position, rotary_dim});
  for (std::int64_t position = 0; position < max_position; ++position) {
    for (std::int64_t i = 0; i < rotary_dim / 2; ++i) {
      const double angle =
          double(position) * std::pow(10000.0, -2.0 * double(i) / double(rotary_dim));
      reference::set_element(table, {position, i}, std::cos(angle));
      reference::set_element(table, {position, rotary_dim / 2 + i}, std::sin(angle));
    }
  }
  return table;
}

/// Norms before RoPE, with an epsilon.
inline HpcRopeNormOptions norm_options() {
  return {.qk_norm_policy = QkNormPolicy::kNormThenRope, .norm_eps = 1e-5};
}

class TestPrologue {
 public:
  /// `options` needs the fields that the layer does not say: policy, epsilon, quantisation.
  TestPrologue(TestLayer& layer, HpcRopeNormOptions options)
      : layer_(layer), table_(rope_table(600, layer.description().head_dim)) {
    const LayerCase& c = layer.description();
    options.layer_name = c.name;
    options.num_heads = c.num_q_heads;
    options.num_kv_heads = c.num_kv_heads;
    options.head_dim = c.head_dim;
    options.cos_sin_cache = table_;
    options.kv_cache_dtype = c.kv_cache_dtype;
    options_ = options;
    const std::int64_t num_tokens = layer.query().size(0);
    qkv_ = layer.random({num_tokens, (c.num_q_heads + 2 * c.num_kv_heads) * c.head_dim});
    const bool fp8 = options.query_quant != QueryQuant::kNone;
    out_q_ =
        GuardedTensor(fp8 ? DType::kFloat8E4M3 : c.dtype, {num_tokens, c.num_q_heads, c.head_dim});
    q_weight_ = weight_for(c.num_q_heads);
    k_weight_ = weight_for(c.num_kv_heads);
    scales_memory_ = GuardedTensor(DType::kFloat32, {1, num_tokens, c.num_q_heads});
    workspace_ = StepWorkspace(scales_memory_);
    q_scale_ = GuardedTensor::of_floats({0.02});
    scales_ = layer.scales();
    scales_.q_scale = q_scale_;
    module_ = std::make_unique<HpcRopeNorm>(options_);
    load(q_weight_, k_weight_);
  }

  HpcRopeNorm& module() { return *module_; }
  StepWorkspace& workspace() { return workspace_; }
  const GuardedTensor& out_q() const { return out_q_; }
  const LayerScales& scales() const { return scales_; }
  GuardedTensor& qkv() { return qkv_; }
  const GuardedTensor& q_weight() const { return q_weight_; }
  const GuardedTensor& k_weight() const { return k_weight_; }

  /// int64 [num_tokens], or [3, num_tokens] for mrope; in place of positions by length.
  void set_positions(const Tensor& positions) { positions_ = positions; }

  void load(const Tensor& q, const Tensor& k) {
    const std::vector<NamedWeight> weights{{"q_norm.weight", q}, {"k_norm.weight", k}};
    module_->process_weights_after_loading(weights);
  }

  HpcRopeNormForwardArgs forward_args(const HpcAttnMetadata& metadata) {
    return {.qkv = qkv_,
            .kv_cache = layer_.cache(),
            .metadata = &metadata,
            .scales = &scales_,
            .positions = positions_,
            .out_q = out_q_,
            .workspace = &workspace_};
  }

  /// The attention of the same layer over this prologue's query; key and value are what an engine
  /// passes: K and V before norm and rotation.
  HpcAttentionForwardArgs attention_args(const HpcAttnMetadata& metadata) {
    HpcAttentionForwardArgs args = layer_.forward_args(metadata);
    args.layer = &scales_;
    args.query = out_q_;
    args.workspace = &workspace_;
    return args;
  }

  reference::RopeResult reference(const HpcAttnMetadata& metadata) const {
    const LayerCase& c = layer_.description();
    const auto heads = [&](std::int64_t first, std::int64_t count) {
      const Tensor part = qkv_.tensor().slice(1, first * c.head_dim, count * c.head_dim);
      const std::int64_t sizes[] = {part.size(0), count, c.head_dim};
      const std::int64_t strides[] = {part.stride(0), c.head_dim, 1};
      return Tensor(part.data(), part.dtype(), sizes, strides);
    };
    RopeNormStoreKvArgs args{.q = heads(0, c.num_q_heads),
                             .k = heads(c.num_q_heads, c.num_kv_heads),
                             .v = heads(c.num_q_heads + c.num_kv_heads, c.num_kv_heads),
                             .cos_sin = table_,
                             .style = options_.style,
                             .positions = positions_,
                             .mrope_section = options_.mrope_section,
                             .cu_seqlens_q = metadata.cu_seqlens_q,
                             .kv_lens = metadata.kv_lens,
                             .slot_mapping = metadata.slot_mapping,
                             .k_cache = layer_.views().k,
                             .v_cache = layer_.views().v,
                             .out_q = out_q_,
                             .upper_max = options_.upper_max,
                             .norm_policy = options_.qk_norm_policy,
                             .norm_scope = options_.norm_scope,
                             .norm_eps = options_.norm_eps};
    if (is_fp8(layer_.kv_dtype())) {
      args.k_scale = scales_.k_scale;
      args.v_scale = scales_.v_scale;
    }
    if (options_.query_quant == QueryQuant::kStatic) args.q_scale = scales_.q_scale;
    if (module_->norms()) {
      args.q_norm_weight = q_weight_;
      args.k_norm_weight = k_weight_;
    }
    return reference::rope_norm_store_kv(args);
  }

  /// "" when out_q and the new tokens' cache slots are the reference's, each rounded once.
  std::string check(const HpcAttnMetadata& metadata) {
    const LayerCase& c = layer_.description();
    const reference::RopeResult want = reference(metadata);
    std::vector<double> q = want.q;
    if (is_fp8(out_q_.tensor().dtype())) {
      for (std::size_t i = 0; i < q.size(); ++i) {
        const double scale = want.q_scale[i / std::size_t(c.head_dim)];
        q[i] = scale > 0.0 ? q[i] / scale : 0.0;
      }
    }
    std::vector<double> bound;
    for (double value : q) {
      bound.push_back(rounded_bound(value, 1e-5 * std::abs(value) + 1e-6, out_q_.tensor().dtype()));
    }
    std::string of_q = compare(out_q_, q, bound, "out_q");
    if (!of_q.empty()) return of_q;
    for (bool of_v : {false, true}) {
      const Tensor view = of_v ? layer_.views().v : layer_.views().k;
      const std::vector<double>& rows = of_v ? want.v : want.k;
      const Tensor& scale = of_v ? scales_.v_scale : scales_.k_scale;
      for (std::int64_t token = 0; token < layer_.num_live(); ++token) {
        for (std::int64_t head = 0; head < c.num_kv_heads; ++head) {
          const double by = is_fp8(layer_.kv_dtype())
                                ? reference::element(scale, {scale.size(0) == 1 ? 0 : head})
                                : 1.0;
          for (std::int64_t dim = 0; dim < c.head_dim; ++dim) {
            const auto at = std::size_t((token * c.num_kv_heads + head) * c.head_dim + dim);
            double value = rows[at] / by;
            if (is_fp8(layer_.kv_dtype())) {
              const double most = reference::largest(layer_.kv_dtype());
              value = std::clamp(value, -most, most);
            }
            const double got = layer_.in_slot(view, layer_.slot(token), head, dim);
            const double allowed =
                rounded_bound(value, 1e-5 * std::abs(value) + 1e-6, layer_.kv_dtype());
            if (!(std::abs(got - value) <= allowed)) {
              return message(of_v ? "V" : "K", " of token ", token, " head ", head, " dim ", dim,
                             " is ", got, ", expected ", value);
            }
          }
        }
      }
    }
    return "";
  }

 private:
  GuardedTensor weight_for(std::int64_t heads) {
    const std::int64_t head_dim = layer_.description().head_dim;
    return layer_.random({options_.norm_scope == NormScope::kToken ? heads * head_dim : head_dim});
  }

  TestLayer& layer_;
  HpcRopeNormOptions options_;
  GuardedTensor table_, qkv_, out_q_, q_weight_, k_weight_, scales_memory_, q_scale_;
  StepWorkspace workspace_;
  LayerScales scales_;
  Tensor positions_;
  std::unique_ptr<HpcRopeNorm> module_;
};

}  // namespace hpcattn::testkit
