// SPDX-License-Identifier: Apache-2.0
#include "server.h"

#include <cmath>
#include <map>

#include "hpcattn/hpcattn.h"

namespace example {

namespace {

using hpcattn::DType;
using hpcattn::Tensor;

/// The step's batch as tensors: views, nothing is copied.
struct BatchTensors {
  explicit BatchTensors(Batch& batch) {
    const std::int64_t requests = std::int64_t(batch.kv_lens.size());
    cu_seqlens_q = Tensor::contiguous(batch.cu_seqlens_q.data(), DType::kInt32, {requests + 1});
    kv_lens = Tensor::contiguous(batch.kv_lens.data(), DType::kInt32, {requests});
    page_table = Tensor::contiguous(batch.page_table.data(), DType::kInt32,
                                    {requests, std::int64_t(batch.max_pages)});
  }
  Tensor cu_seqlens_q;
  Tensor kv_lens;
  Tensor page_table;
};

/// Layers alike in everything but weights are one attention group: they share a plan.
hpcattn::AttentionGroup group_of_layer(const Config& config, const Layer& layer) {
  return {.num_q_heads = config.num_q_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .page_size = PagePool::kPageSize,
          .q_dtype = DType::kFloat32,
          .kv_dtype = DType::kFloat32,
          .causal = true,
          .window = layer.window};
}

using Plans = std::map<std::optional<std::int64_t>, std::vector<std::int32_t>>;

Tensor plan_tensor(std::vector<std::int32_t>& words) {
  return Tensor::contiguous(words.data(), DType::kInt32, {std::int64_t(words.size())});
}

/// One plan for each group, by window: the only thing in which our layers differ.
Plans make_plans(const Model& model, const BatchTensors& batch, std::int64_t num_tokens) {
  Plans plans;
  for (const Layer& layer : model.layers) {
    if (plans.contains(layer.window)) continue;
    const hpcattn::AttentionGroup group = group_of_layer(model.config, layer);
    std::vector<std::int32_t>& words = plans[layer.window];
    words.resize(std::size_t(hpcattn::plan_words(
        group, {.max_requests = batch.kv_lens.size(0), .max_tokens = num_tokens})));
    hpcattn::make_plan({.group = group,
                        .cu_seqlens_q = batch.cu_seqlens_q,
                        .kv_lens = batch.kv_lens,
                        .plan = plan_tensor(words)});
  }
  return plans;
}

/// Attention of one layer over qkv [num_tokens, qkv_width]; gives [num_tokens, hidden].
std::vector<float> attention(const Model& model, std::size_t layer_index, PagePool& pool,
                             const BatchTensors& batch, Plans& plans, std::vector<float>& qkv) {
  const Config& config = model.config;
  const Layer& layer = model.layers[layer_index];
  const std::int64_t num_tokens = std::int64_t(qkv.size() / std::size_t(config.qkv_width()));
  const std::int64_t q_heads = config.num_q_heads;
  const std::int64_t kv_heads = config.num_kv_heads;
  const Tensor heads = Tensor::contiguous(qkv.data(), DType::kFloat32,
                                          {num_tokens, q_heads + 2 * kv_heads, config.head_dim});
  const Tensor q = heads.slice(1, 0, q_heads);

  hpcattn::RopeNormStoreKvArgs prologue;
  prologue.q = q;
  prologue.k = heads.slice(1, q_heads, kv_heads);
  prologue.v = heads.slice(1, q_heads + kv_heads, kv_heads);
  prologue.cos_sin = Tensor::contiguous(const_cast<float*>(model.cos_sin.data()), DType::kFloat32,
                                        {config.max_positions, config.head_dim});
  prologue.cu_seqlens_q = batch.cu_seqlens_q;
  prologue.kv_lens = batch.kv_lens;
  prologue.page_table = batch.page_table;
  prologue.k_cache = pool.k(layer_index);
  prologue.v_cache = pool.v(layer_index);
  prologue.out_q = q;  // rotated in place
  hpcattn::rope_norm_store_kv(prologue);

  std::vector<float> out(std::size_t(num_tokens) * std::size_t(config.hidden()));
  hpcattn::PagedAttentionArgs args;
  args.q = q;
  args.k_cache = pool.k(layer_index);
  args.v_cache = pool.v(layer_index);
  args.page_table = batch.page_table;
  args.cu_seqlens_q = batch.cu_seqlens_q;
  args.kv_lens = batch.kv_lens;
  args.out =
      Tensor::contiguous(out.data(), DType::kFloat32, {num_tokens, q_heads, config.head_dim});
  args.options.scale = 1.0 / std::sqrt(double(config.head_dim));
  args.options.window = layer.window;
  args.plan = plan_tensor(plans.at(layer.window));
  hpcattn::paged_attention(args);
  return out;
}

}  // namespace

std::vector<float> run_step(const Model& model, PagePool& pool, Batch& batch) {
  const Config& config = model.config;
  const std::size_t hidden = std::size_t(config.hidden());
  const BatchTensors tensors(batch);
  Plans plans = make_plans(model, tensors, std::int64_t(batch.tokens.size()));

  std::vector<float> x;
  for (const int token : batch.tokens) {
    const float* row = &model.embedding[std::size_t(token) * hidden];
    x.insert(x.end(), row, row + hidden);
  }
  for (std::size_t index = 0; index < model.layers.size(); ++index) {
    const Layer& layer = model.layers[index];
    std::vector<float> qkv = linear(rms_norm(x, config.hidden()), layer.qkv, config.hidden());
    const std::vector<float> update =
        linear(attention(model, index, pool, tensors, plans, qkv), layer.out, config.hidden());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += update[i];
  }

  std::vector<float> last_rows;
  for (std::size_t request = 0; request < batch.kv_lens.size(); ++request) {
    const auto end =
        x.begin() + std::ptrdiff_t(std::size_t(batch.cu_seqlens_q[request + 1]) * hidden);
    last_rows.insert(last_rows.end(), end - std::ptrdiff_t(hidden), end);
  }
  return linear(rms_norm(last_rows, config.hidden()), model.head, config.hidden());
}

}  // namespace example
