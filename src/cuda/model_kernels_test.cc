// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/model_kernels.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "hpcattn/cuda.h"
#include "hpcattn/prepare.h"
#include "src/cuda/attention.h"
#include "src/cuda/test_fakes.h"

namespace hpcattn {
namespace {

ModelDescription model_of(DType kv_dtype) {
  ModelDescription model;
  model.group = {.num_q_heads = 32,
                 .num_kv_heads = 8,
                 .head_dim = 128,
                 .page_size = 16,
                 .q_dtype = DType::kBFloat16,
                 .kv_dtype = kv_dtype};
  return model;
}

std::set<std::string> sources_of(const std::vector<ModelDescription>& models) {
  const auto variants = cuda::kernels_of(models, cuda::attention_device("sm_90a"));
  std::set<std::string> sources;
  for (const cuda::KernelVariant& variant : variants) sources.insert(variant.source);
  EXPECT_EQ(sources.size(), variants.size()) << "each once";
  return sources;
}

TEST(ModelKernels, LayersThatShareKernelsCountOnce) {
  ModelDescription other_heads = model_of(DType::kBFloat16);
  other_heads.group.num_kv_heads = 4;
  other_heads.group.window = 100;
  const auto one = sources_of({model_of(DType::kBFloat16)});
  EXPECT_EQ(sources_of({model_of(DType::kBFloat16), other_heads}), one);
  const auto both = sources_of({model_of(DType::kBFloat16), model_of(DType::kFloat8E4M3)});
  // Attention of any rows and of few, in two sizes; and store_kv.
  EXPECT_EQ(both.size(), one.size() + 4);
  other_heads.group.page_size = 64;  // copied in other boxes
  EXPECT_EQ(sources_of({model_of(DType::kBFloat16), other_heads}).size(), one.size() + 3);
}

TEST(ModelKernels, WhatAGpuDoesNotComputeIsRefused) {
  const auto refusal = [](auto change) {
    ModelDescription model = model_of(DType::kBFloat16);
    change(model);
    return cuda::thrown<Error>([&] { cuda::kernels_of({model}, cuda::attention_device("sm_80")); });
  };
  EXPECT_NE(refusal([](auto& m) {
              m.dtype = DType::kFloat32;
            }).find("dtype is float32, a GPU's attention takes float16 or bfloat16"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& m) { m.group.kv_dtype = DType::kFloat16; }).find("KV is float16"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& m) { m.group.q_dtype = DType::kFloat16; }).find("q is float16"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& m) { m.group.num_kv_heads = 5; }).find("32:5 heads"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& m) { m.group.head_dim = 72; }).find("head_dim is 72, supported"),
            std::string::npos);
  EXPECT_NE(cuda::thrown<InvalidArgument>([] {
              prepare({model_of(DType::kBFloat16)}, {});
            }).find("device is cpu, expected a CUDA device"),
            std::string::npos);
}

TEST(ModelKernels, PreparedOnceAndThenFound) {
  cuda::in_new_process([] {
    const cuda::TemporaryFolder folder;
    cuda::use_fakes(folder);
    const std::vector<ModelDescription> model = {model_of(DType::kFloat8E4M3)};
    std::vector<PreparedKernel> told;
    PrepareOptions options;
    options.num_threads = 3;
    options.progress = [&](const PreparedKernel& kernel) { told.push_back(kernel); };
    prepare_for_arch(model, "sm_90a", options);
    const std::size_t total = told.size();
    EXPECT_EQ(total, sources_of(model).size());
    EXPECT_EQ(told.back().done, told.back().total);
    EXPECT_TRUE(std::all_of(told.begin(), told.end(), [](const auto& k) { return k.compiled; }));
    EXPECT_EQ(cuda::compilations().size(), total);
    prepare_for_arch(model, "sm_90a", options);
    EXPECT_EQ(cuda::compilations().size(), total);
    // The stand-in has another size of shared memory than sm_90a, and so its own attention.
    prepare(model, {DeviceType::kCuda, 0}, options);
    EXPECT_LE(cuda::compilations().size(), total + 3);
    EXPECT_EQ(told.size(), 3 * total);
    const std::size_t compiled = cuda::compilations().size();
    prepare(model, {DeviceType::kCuda, 0});
    EXPECT_EQ(cuda::compilations().size(), compiled);
  });
}

}  // namespace
}  // namespace hpcattn
