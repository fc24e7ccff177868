// SPDX-License-Identifier: Apache-2.0
// The example of docs/operators/backend.md, run. A test below compares the page with this text.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <fstream>
#include <iostream>
#include <sstream>

#include "hpcattn/hpcattn.h"

namespace {

// The page shows what lies between the two marks.
// [example
using namespace hpcattn;

constexpr std::int64_t kHeads = 8, kKvHeads = 2, kHeadDim = 64, kPageSize = 16, kNumPages = 32;
constexpr std::int64_t kMaxTokens = 64, kMaxPosition = 256;

Tensor view(std::vector<float>& memory, std::initializer_list<std::int64_t> sizes) {
  return Tensor::contiguous(memory.data(), DType::kFloat32, sizes);
}

// One layer of a model: its KV cache, its prologue and its attention. `cos_sin` is the model's
// table.
struct Layer {
  explicit Layer(const std::string& name, const Tensor& cos_sin)
      : scales{.name = name},
        cache(kNumPages * 2 * kPageSize * kKvHeads * kHeadDim),
        prologue({.layer_name = name,
                  .num_heads = kHeads,
                  .num_kv_heads = kKvHeads,
                  .head_dim = kHeadDim,
                  .cos_sin_cache = cos_sin,
                  .qk_norm_policy = QkNormPolicy::kNormThenRope,
                  .norm_eps = 1e-5}),
        attention({.num_heads = kHeads,
                   .head_size = kHeadDim,
                   .scale = 0.125,
                   .num_kv_heads = kKvHeads}) {}

  // qkv [num_tokens, (kHeads + 2 * kKvHeads) * kHeadDim] -> output [num_tokens, kHeads, kHeadDim].
  void forward(const Tensor& qkv, const Tensor& output, const HpcAttnMetadata& metadata,
               StepWorkspace& workspace) {
    const Tensor kv_cache = Tensor::contiguous(
        cache.data(), DType::kFloat32,
        HpcAttentionBackend::kv_cache_shape(kNumPages, kPageSize, kKvHeads, kHeadDim));
    std::vector<float> query_memory(std::size_t(output.num_elements()));
    const Tensor query = view(query_memory, {output.size(0), kHeads, kHeadDim});
    prologue.forward({.qkv = qkv,
                      .kv_cache = kv_cache,
                      .metadata = &metadata,
                      .out_q = query,
                      .workspace = &workspace});
    // The prologue has written K and V, and the workspace says so: none are passed here.
    attention.forward({.layer = &scales,
                       .query = query,
                       .kv_cache = kv_cache,
                       .metadata = &metadata,
                       .output = output,
                       .workspace = &workspace});
  }

  LayerScales scales;
  std::vector<float> cache;
  HpcRopeNorm prologue;
  HpcAttentionImpl attention;
};

// What is asked before anything is made.
void check_supported() {
  const BackendRequest request{.num_q_heads = kHeads,
                               .num_kv_heads = kKvHeads,
                               .head_dim = kHeadDim,
                               .page_size = kPageSize,
                               .dtype = DType::kFloat32};
  for (const std::string& reason : HpcAttentionBackend::validate(request)) {
    std::cerr << HpcAttentionBackend::name() << ": " << reason << "\n";
  }
}

// The batch of a step: one request, its pages in order, `num_new` tokens after `num_past`.
struct Batch {
  Batch(std::int32_t num_past, std::int32_t num_new)
      : cu_seqlens_q{0, num_new}, kv_lens{num_past + num_new}, pages(kMaxPosition / kPageSize) {
    for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<std::int32_t>(i);
    for (std::int32_t i = 0; i < num_new; ++i) slots.push_back(num_past + i);
  }

  CommonAttnMetadata common(std::uint64_t step) {
    const auto num_tokens = std::int64_t(slots.size());
    const auto num_pages = std::int64_t(pages.size());
    return {.step = step,
            .num_requests = 1,
            .num_actual_tokens = num_tokens,
            .cu_seqlens_q = Tensor::contiguous(cu_seqlens_q.data(), DType::kInt32, {2}),
            .kv_lens = Tensor::contiguous(kv_lens.data(), DType::kInt32, {1}),
            .page_table = Tensor::contiguous(pages.data(), DType::kInt32, {1, num_pages}),
            .slot_mapping = Tensor::contiguous(slots.data(), DType::kInt64, {num_tokens})};
  }

  std::vector<std::int32_t> cu_seqlens_q, kv_lens, pages;
  std::vector<std::int64_t> slots;
};

// A prompt in chunks, of any lengths, and its tokens one by one: all steps look the same.
std::vector<float> run(std::deque<Layer>& layers, std::vector<float> hidden,
                       const std::vector<std::int32_t>& chunks) {
  HpcAttnMetadataBuilder builder({.group = {.num_q_heads = kHeads,
                                            .num_kv_heads = kKvHeads,
                                            .head_dim = kHeadDim,
                                            .page_size = kPageSize},
                                  .max_num_requests = 1,
                                  .max_num_tokens = kMaxTokens,
                                  .max_model_len = kMaxPosition});
  StepWorkspace workspace;
  constexpr std::int64_t kWidth = (kHeads + 2 * kKvHeads) * kHeadDim;
  std::vector<float> results;
  std::int32_t num_past = 0;
  for (std::int32_t num_new : chunks) {
    Batch batch(num_past, num_new);
    const HpcAttnMetadata metadata = builder.build(0, batch.common(workspace.begin_step()));
    const Tensor qkv = view(hidden, {std::int64_t(hidden.size()) / kWidth, kWidth});
    std::vector<float> output(std::size_t(num_new * kHeads * kHeadDim));
    for (Layer& layer : layers) {  // a model would compute qkv of the next layer in between
      layer.forward(qkv.slice(0, num_past, num_new), view(output, {num_new, kHeads, kHeadDim}),
                    metadata, workspace);
    }
    results.insert(results.end(), output.begin(), output.end());
    num_past += num_new;
  }
  return results;
}
// example]

std::deque<Layer> two_layers(const Tensor& cos_sin, std::vector<float>& weight) {
  std::deque<Layer> layers;
  layers.emplace_back("layers.0", cos_sin);
  layers.emplace_back("layers.1", cos_sin);
  const std::vector<NamedWeight> weights{{"q_norm.weight", view(weight, {kHeadDim})},
                                         {"k_norm.weight", view(weight, {kHeadDim})}};
  for (Layer& layer : layers) layer.prologue.process_weights_after_loading(weights);
  return layers;
}

TEST(BackendExampleTest, ChunksEqualOnePass) {
  check_supported();
  std::vector<float> table(std::size_t(kMaxPosition * kHeadDim));
  for (std::int64_t i = 0; i < kMaxPosition * kHeadDim; ++i) {
    const double angle = double(i / kHeadDim) * std::pow(1e4, -double(i % (kHeadDim / 2)) / 32.0);
    table[std::size_t(i)] = float(i % kHeadDim < kHeadDim / 2 ? std::cos(angle) : std::sin(angle));
  }
  std::vector<float> weight(kHeadDim, 1.5F);
  std::vector<float> hidden(std::size_t(40 * (kHeads + 2 * kKvHeads) * kHeadDim));
  for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] = std::sin(float(i) * 0.37F);
  const Tensor cos_sin = view(table, {kMaxPosition, kHeadDim});

  std::deque<Layer> once = two_layers(cos_sin, weight);
  const std::vector<float> want = run(once, hidden, {40});
  std::deque<Layer> chunked = two_layers(cos_sin, weight);
  const std::vector<float> got = run(chunked, hidden, {17, 16, 1, 5, 1});
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5) << i;
  EXPECT_GT(*std::max_element(want.begin(), want.end()), 0.1F);
}

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(BackendExampleTest, ThePageShowsThisExample) {
  const std::string here = __FILE__;
  const std::string root = here.substr(0, here.rfind("src/backend/"));
  const std::string source = text_of(here);
  if (source.empty()) GTEST_SKIP() << "the sources are not on this machine";
  const std::string begin = "// [example\n";
  const std::size_t from = source.find(begin) + begin.size();
  const std::string example = source.substr(from, source.find("// example]") - from);
  ASSERT_GT(example.size(), 1000U);
  EXPECT_NE(text_of(root + "docs/operators/backend.md").find("```cpp\n" + example + "```"),
            std::string::npos)
      << "copy the text between the marks of this file into docs/operators/backend.md";
}

}  // namespace
