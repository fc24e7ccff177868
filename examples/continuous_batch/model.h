// SPDX-License-Identifier: Apache-2.0
// A small attention-only decoder with random weights: enough of a model to serve.
//
//   x = embedding[token]
//   for each layer:  q, k, v = qkv * rmsnorm(x);  x = x + out * attention(rope(q), rope(k), v)
//   logits = head * rmsnorm(x)
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace example {

struct Config {
  int vocab = 97;
  int num_q_heads = 6;
  int num_kv_heads = 2;
  int head_dim = 64;
  int max_positions = 256;
  std::int64_t window = 24;  // of every second layer; the others see all
  int num_layers = 4;

  int hidden() const { return num_q_heads * head_dim; }
  int qkv_width() const { return (num_q_heads + 2 * num_kv_heads) * head_dim; }
};

struct Layer {
  std::vector<float> qkv;  // [qkv_width, hidden]
  std::vector<float> out;  // [hidden, hidden]
  std::optional<std::int64_t> window;
};

struct Model {
  Model(const Config& config, unsigned seed);

  Config config;
  std::vector<float> embedding;  // [vocab, hidden]
  std::vector<Layer> layers;
  std::vector<float> head;     // [vocab, hidden]
  std::vector<float> cos_sin;  // [max_positions, head_dim]: first half cos, second half sin
};

constexpr double kNormEps = 1e-5;

/// y[rows, width_out] = x[rows, width_in] * weight[width_out, width_in]^T, in T. The weights are
/// float32.
template <typename T>
std::vector<T> linear(const std::vector<T>& x, const std::vector<float>& weight, int width_in) {
  const std::size_t in = std::size_t(width_in);
  const std::size_t rows = x.size() / in;
  const std::size_t out = weight.size() / in;
  std::vector<T> y(rows * out);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t o = 0; o < out; ++o) {
      T sum = 0;
      for (std::size_t i = 0; i < in; ++i) sum += x[row * in + i] * T(weight[o * in + i]);
      y[row * out + o] = sum;
    }
  }
  return y;
}

/// Each row of x[rows, width] over its root mean square.
template <typename T>
std::vector<T> rms_norm(const std::vector<T>& x, int width);

}  // namespace example
