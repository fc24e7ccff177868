// SPDX-License-Identifier: Apache-2.0
// What the backend does on the host for a GPU, over a stand-in of libcuda whose device memory is
// the host's. Kernels do not run there; src/gpu_tests/backend.cc has the rest.
#include <gtest/gtest.h>

#include "hpcattn/backend.h"
#include "src/backend/test_prologue.h"
#include "src/cuda/test_fakes.h"

namespace hpcattn {
namespace {

using cuda::expect_contains;
using cuda::fake;
using cuda::in_new_process;
using cuda::TemporaryFolder;
using testkit::error_of;
using testkit::GuardedTensor;
using testkit::LayerCase;
using testkit::TestLayer;
using testkit::TestPrologue;

constexpr Device kGpu{.type = DeviceType::kCuda, .index = 1};

const LayerCase kMixed{
    .q_lens = {1, 1, 37}, .kv_lens = {90, 1, 37}, .dtype = DType::kBFloat16, .padding = 3};

Tensor on_gpu(const Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return {tensor.data(), tensor.dtype(), tensor.sizes(), tensor.strides(), kGpu};
}

CommonAttnMetadata on_gpu(const CommonAttnMetadata& host) {
  CommonAttnMetadata common = host;
  for (Tensor* tensor :
       {&common.cu_seqlens_q, &common.kv_lens, &common.page_table, &common.slot_mapping}) {
    *tensor = on_gpu(*tensor);
  }
  common.cu_seqlens_q_cpu = host.cu_seqlens_q;
  common.kv_lens_cpu = host.kv_lens;
  return common;
}

HpcAttnMetadataBuilderOptions gpu_options(const TestLayer& layer) {
  HpcAttnMetadataBuilderOptions options = layer.builder_options();
  options.device = kGpu;
  return options;
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST(GpuStep, AStepIsDescribedWithoutWaiting) {
  in_new_process([] {
    const TemporaryFolder folder;
    cuda::use_fakes(folder);
    TestLayer layer(kMixed);
    HpcAttnMetadataBuilder builder(gpu_options(layer));
    const CommonAttnMetadata common = on_gpu(layer.common());
    builder.build(0, common);  // compiles
    fake().take_log();
    fake().fail("cuStreamSynchronize", 719);
    const HpcAttnMetadata metadata = builder.build(0, common);
    const std::string log = fake().take_log();
    EXPECT_EQ(count_of(log, "launch"), 2) << log;  // the prefill's offsets, and the plan
    EXPECT_EQ(count_of(log, "alloc") + count_of(log, "buffer") + count_of(log, "copy"), 0) << log;
    EXPECT_EQ(metadata.num_decodes, 2);
    EXPECT_EQ(metadata.num_prefill_tokens, 37);
    EXPECT_EQ(metadata.max_query_len, 37);
    EXPECT_EQ(metadata.max_kv_len, 90);
    EXPECT_EQ(metadata.plan.device(), kGpu);
    EXPECT_EQ(to_string(metadata.cu_seqlens_prefill), "int32[2] on cuda:1");

    CommonAttnMetadata bound = common;
    bound.kv_lens_cpu = {};
    EXPECT_EQ(builder.build(0, bound).max_kv_len, layer.builder_options().max_model_len);
    CommonAttnMetadata none = common;
    none.cu_seqlens_q_cpu = {};
    expect_contains(cuda::thrown<DeviceError>([&] { builder.build(0, none); }),
                    "waiting for the stream failed");
  });
}

TEST(GpuStep, HostLengthsAreChecked) {
  in_new_process([] {
    const TemporaryFolder folder;
    cuda::use_fakes(folder);
    TestLayer layer(kMixed);
    HpcAttnMetadataBuilder builder(gpu_options(layer));
    const auto refused = [&](auto change) {
      CommonAttnMetadata common = on_gpu(layer.common());
      change(common);
      return error_of([&] { builder.build(0, common); });
    };
    expect_contains(refused([&](auto& c) { c.kv_lens_cpu = on_gpu(layer.common().kv_lens); }),
                    "kv_lens_cpu is on cuda:1, expected cpu");
    expect_contains(refused([&](auto& c) { c.cu_seqlens_q_cpu = layer.common().kv_lens; }),
                    "cu_seqlens_q_cpu is int32[3] on cpu, expected shape [4]");
    expect_contains(refused([&](auto& c) { c.kv_lens = layer.common().kv_lens; }),
                    "kv_lens is on cpu, expected cuda:1");
    const GuardedTensor lens = GuardedTensor::of_ints(std::vector<std::int32_t>{90, 1, 97});
    expect_contains(refused([&](auto& c) { c.kv_lens_cpu = lens; }),
                    "kv_lens[2] is 97, expected 0 to the capacity of 96");
  });
}

TEST(GpuStep, AGraphsMemoryIsAllocatedOnce) {
  in_new_process([] {
    const TemporaryFolder folder;
    cuda::use_fakes(folder);
    TestLayer layer(kMixed);
    HpcAttnMetadataBuilder builder(gpu_options(layer));
    HpcAttnMetadata metadata = builder.build_for_graph_capture(on_gpu(layer.common()));
    fake().take_log();
    fake().fail("cuStreamSynchronize", 719);
    const void* address = metadata.kv_lens.data();
    TestLayer step({.q_lens = {1}, .kv_lens = {20}, .dtype = DType::kBFloat16});
    builder.update_in_place(metadata, on_gpu(step.common(7)));
    const std::string log = fake().take_log();
    EXPECT_EQ(count_of(log, "launch"), 2) << log;
    EXPECT_EQ(count_of(log, "alloc") + count_of(log, "buffer") + count_of(log, "copy"), 0) << log;
    EXPECT_EQ(metadata.kv_lens.data(), address);
    EXPECT_EQ(metadata.step, 7U);
    EXPECT_EQ(metadata.num_requests(), 3);
    EXPECT_EQ(metadata.max_kv_len, 20);
    EXPECT_EQ(to_string(metadata.page_table), "int32[3, 6] on cuda:1");
    EXPECT_EQ(to_string(metadata.slot_mapping), "int64[42] on cuda:1");
  });
}

TEST(GpuStep, WeightsGoToAddressesThatStay) {
  in_new_process([] {
    const TemporaryFolder folder;
    cuda::use_fakes(folder);
    TestLayer layer(kMixed);
    TestPrologue prologue(layer, testkit::norm_options());
    HpcRopeNormOptions options = prologue.module().options();
    options.cos_sin_cache = on_gpu(options.cos_sin_cache);
    HpcRopeNorm module(options);
    const Tensor weight = module.k_norm_weight();
    EXPECT_EQ(weight.device(), kGpu);
    for (bool weights_on_gpu : {false, true}) {
      const GuardedTensor fresh = layer.random({64});
      const Tensor k = weights_on_gpu ? on_gpu(fresh) : Tensor(fresh);
      const std::vector<NamedWeight> weights{{"q_norm.weight", prologue.q_weight()},
                                             {"k_norm.weight", k}};
      module.process_weights_after_loading(weights);
      EXPECT_EQ(module.k_norm_weight().data(), weight.data());
      EXPECT_EQ(weight.data_as<const float>()[63], float(reference::element(fresh.tensor(), {63})));
    }
    Tensor elsewhere = on_gpu(prologue.k_weight());
    elsewhere = {elsewhere.data(),
                 elsewhere.dtype(),
                 elsewhere.sizes(),
                 elsewhere.strides(),
                 {.type = DeviceType::kCuda, .index = 0}};
    const std::vector<NamedWeight> weights{{"q_norm.weight", prologue.q_weight()},
                                           {"k_norm.weight", elsewhere}};
    expect_contains(error_of([&] { module.process_weights_after_loading(weights); }),
                    "k_norm.weight is on cuda:0, expected cuda:1");
  });
}

TEST(GpuStep, AlibiSlopesLieOnTheDevice) {
  in_new_process([] {
    const TemporaryFolder folder;
    cuda::use_fakes(folder);
    HpcAttentionImplOptions options = TestLayer(kMixed).impl_options();
    options.alibi_slopes = std::vector<float>{1.0F, 0.5F, 0.25F, 0.125F};
    options.device = kGpu;
    const HpcAttentionImpl impl(options);
    expect_contains(fake().take_log(), "buffer 16");
  });
}

}  // namespace
}  // namespace hpcattn
