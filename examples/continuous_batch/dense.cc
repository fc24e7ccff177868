// SPDX-License-Identifier: Apache-2.0
#include "dense.h"

#include <algorithm>
#include <cmath>

namespace example {

namespace {

/// NeoX rotation of one head at `position`, in place.
void rotate(double* head, std::size_t position, const Model& model) {
  const std::size_t half = std::size_t(model.config.head_dim) / 2;
  const float* cos = model.cos_sin.data() + position * 2 * half;
  const float* sin = cos + half;
  for (std::size_t i = 0; i < half; ++i) {
    const double a = head[i];
    const double b = head[i + half];
    head[i] = a * double(cos[i]) - b * double(sin[i]);
    head[i + half] = b * double(cos[i]) + a * double(sin[i]);
  }
}

/// Causal attention of one layer over qkv [tokens, qkv_width]; gives [tokens, hidden].
std::vector<double> attention(const Model& model, const Layer& layer,
                              const std::vector<double>& qkv) {
  const std::size_t dim = std::size_t(model.config.head_dim);
  const std::size_t q_heads = std::size_t(model.config.num_q_heads);
  const std::size_t kv_heads = std::size_t(model.config.num_kv_heads);
  const std::size_t width = std::size_t(model.config.qkv_width());
  const std::size_t tokens = qkv.size() / width;
  const double scale = 1.0 / std::sqrt(double(dim));

  std::vector<double> out(tokens * q_heads * dim);
  for (std::size_t i = 0; i < tokens; ++i) {
    const std::size_t window = std::size_t(layer.window.value_or(std::int64_t(tokens)));
    const std::size_t first = i + 1 > window ? i + 1 - window : 0;
    for (std::size_t head = 0; head < q_heads; ++head) {
      const std::size_t kv_head = head / (q_heads / kv_heads);
      const double* q = &qkv[i * width + head * dim];
      std::vector<double> p;
      for (std::size_t j = first; j <= i; ++j) {
        const double* k = &qkv[j * width + (q_heads + kv_head) * dim];
        double score = 0;
        for (std::size_t d = 0; d < dim; ++d) score += q[d] * k[d];
        p.push_back(score * scale);
      }
      const double largest = *std::max_element(p.begin(), p.end());
      double sum = 0;
      for (double& score : p) sum += score = std::exp(score - largest);
      for (std::size_t j = first; j <= i; ++j) {
        const double* v = &qkv[j * width + (q_heads + kv_heads + kv_head) * dim];
        double* row = &out[(i * q_heads + head) * dim];
        for (std::size_t d = 0; d < dim; ++d) row[d] += p[j - first] / sum * v[d];
      }
    }
  }
  return out;
}

}  // namespace

std::vector<double> dense_logits(const Model& model, const std::vector<int>& tokens) {
  const Config& config = model.config;
  const std::size_t hidden = std::size_t(config.hidden());
  std::vector<double> x;
  for (const int token : tokens) {
    const float* row = &model.embedding[std::size_t(token) * hidden];
    x.insert(x.end(), row, row + hidden);
  }
  for (const Layer& layer : model.layers) {
    std::vector<double> qkv = linear(rms_norm(x, config.hidden()), layer.qkv, config.hidden());
    for (std::size_t token = 0; token < tokens.size(); ++token) {
      double* row = &qkv[token * std::size_t(config.qkv_width())];
      for (int head = 0; head < config.num_q_heads + config.num_kv_heads; ++head) {
        rotate(row + head * config.head_dim, token, model);
      }
    }
    const std::vector<double> update =
        linear(attention(model, layer, qkv), layer.out, config.hidden());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += update[i];
  }
  return linear(rms_norm(x, config.hidden()), model.head, config.hidden());
}

}  // namespace example
