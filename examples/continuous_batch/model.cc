// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <cmath>
#include <random>

namespace example {

namespace {

std::vector<float> random_matrix(int rows, int columns, std::mt19937& generator) {
  std::normal_distribution<float> normal(0.0F, 1.5F / std::sqrt(float(columns)));
  std::vector<float> matrix(std::size_t(rows) * std::size_t(columns));
  for (float& value : matrix) value = normal(generator);
  return matrix;
}

std::vector<float> rotary_table(const Config& config) {
  const int half = config.head_dim / 2;
  std::vector<float> table;
  for (int position = 0; position < config.max_positions; ++position) {
    for (int part = 0; part < 2; ++part) {
      for (int i = 0; i < half; ++i) {
        const double angle = position * std::pow(10000.0, -double(i) / half);
        table.push_back(float(part == 0 ? std::cos(angle) : std::sin(angle)));
      }
    }
  }
  return table;
}

}  // namespace

Model::Model(const Config& given, unsigned seed) : config(given) {
  std::mt19937 generator(seed);
  embedding = random_matrix(config.vocab, config.hidden(), generator);
  for (int index = 0; index < config.num_layers; ++index) {
    Layer layer;
    layer.qkv = random_matrix(config.qkv_width(), config.hidden(), generator);
    layer.out = random_matrix(config.hidden(), config.hidden(), generator);
    if (index % 2 == 1) layer.window = config.window;
    layers.push_back(std::move(layer));
  }
  head = random_matrix(config.vocab, config.hidden(), generator);
  cos_sin = rotary_table(config);
}

template <typename T>
std::vector<T> rms_norm(const std::vector<T>& x, int width) {
  std::vector<T> y(x.size());
  for (std::size_t row = 0; row < x.size(); row += std::size_t(width)) {
    T sum = 0;
    for (std::size_t i = 0; i < std::size_t(width); ++i) sum += x[row + i] * x[row + i];
    const T factor = T(1) / std::sqrt(sum / T(width) + T(kNormEps));
    for (std::size_t i = 0; i < std::size_t(width); ++i) y[row + i] = x[row + i] * factor;
  }
  return y;
}

template std::vector<float> rms_norm(const std::vector<float>&, int);
template std::vector<double> rms_norm(const std::vector<double>&, int);

}  // namespace example
