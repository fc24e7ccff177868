// SPDX-License-Identifier: Apache-2.0
// The backend classes on the GPU, by the same layers and the same reference as on the CPU.
#include "hpcattn/backend.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "hpcattn/counters.h"
#include "src/gpu_tests/backend_run.h"
#include "src/gpu_tests/expect.h"

namespace hpcattn {
namespace {

using testkit::DeviceMirror;
using testkit::error_of;
using testkit::gpu_arithmetic;
using testkit::GpuGraph;
using testkit::GpuLane;
using testkit::GuardedTensor;
using testkit::kGpu;
using testkit::LayerCase;
using testkit::main_lane;
using testkit::on_gpu;
using testkit::tensors_of;
using testkit::TestLayer;
using testkit::TestPrologue;

LayerCase mixed_case() {
  return {.q_lens = {1, 1, 37, 5},
          .kv_lens = {90, 1, 37, 590},
          .dtype = DType::kBFloat16,
          .padding = 3};
}

enum class HostLengths { kBoth, kOffsets, kNone };

std::string run_layer(GpuLane& lane, const LayerCase& c, HpcAttentionImplOptions options,
                      HostLengths lengths = HostLengths::kBoth, bool fast_build = false) {
  TestLayer layer(c);
  std::vector<Tensor> tensors = tensors_of(layer);
  tensors.push_back(options.sinks);
  DeviceMirror mirror(lane, tensors);
  mirror.upload();
  const AttentionOptions want = layer.reference_options(options);
  AttentionOptions with_slopes = want;
  if (options.alibi_slopes) {
    with_slopes.alibi_slopes = Tensor::contiguous(options.alibi_slopes->data(), DType::kFloat32,
                                                  {std::int64_t(options.alibi_slopes->size())});
  }
  HpcAttentionImplOptions gpu_options = options;
  gpu_options.sinks = mirror.to_device(options.sinks);
  gpu_options.device = kGpu;

  HpcAttnMetadataBuilder builder(on_gpu(layer.builder_options(options.sliding_window), lane));
  CommonAttnMetadata common = on_gpu(mirror, layer.common());
  if (lengths != HostLengths::kBoth) common.kv_lens_cpu = {};
  if (lengths == HostLengths::kNone) common.cu_seqlens_q_cpu = {};
  const HpcAttnMetadata metadata = builder.build(0, common, fast_build);
  const LayerScales scales = on_gpu(mirror, layer.scales());
  const HpcAttentionForwardArgs args = on_gpu(mirror, layer.forward_args(metadata), scales);
  HpcAttentionImpl(gpu_options).forward(args, lane.stream.execution());
  std::string around = testkit::finish(lane, mirror);
  if (!around.empty()) return around;
  if (layer.wrong_slots() != 0) return c.name + ": KV of new tokens is not in the cache";
  return layer.check(with_slopes, layer.query(),
                     gpu_arithmetic(layer.query(), layer.views().k, layer.common().cu_seqlens_q));
}

TEST(GpuBackend, EveryDtypeCacheAndLayout) {
  std::vector<LayerCase> cases;
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const char* kv : {"auto", "fp8_e4m3", "fp8_e5m2"}) {
      for (KvCacheLayout layout :
           {KvCacheLayout::kNhd, KvCacheLayout::kHnd, KvCacheLayout::kPacked}) {
        LayerCase c = mixed_case();
        c.dtype = dtype;
        c.kv_cache_dtype = kv;
        c.layout = layout;
        c.per_head_scales = layout == KvCacheLayout::kHnd;
        cases.push_back(c);
      }
    }
  }
  testkit::expect_all_right(cases, [](GpuLane& lane, const LayerCase& c) {
    return run_layer(lane, c, TestLayer(c).impl_options());
  });
}

TEST(GpuBackend, EveryFeatureOfALayer) {
  GuardedTensor sinks = GuardedTensor::of_floats({0.5, -1.0, 2.0, 0.0});
  std::vector<HpcAttentionImplOptions> all;
  const HpcAttentionImplOptions plain = TestLayer(mixed_case()).impl_options();
  for (int feature = 0; feature < 5; ++feature) {
    HpcAttentionImplOptions options = plain;
    if (feature == 1) options.sliding_window = 40;
    if (feature == 2) options.logits_soft_cap = 3.0;
    if (feature == 3) options.alibi_slopes = std::vector<float>{0.5F, 0.25F, 0.125F, 0.0F};
    if (feature == 4) options.sinks = sinks;
    all.push_back(options);
  }
  for (const HpcAttentionImplOptions& options : all) {
    EXPECT_EQ(run_layer(main_lane(), mixed_case(), options), "");
  }
}

TEST(GpuBackend, HostLengthsChangeNoResult) {
  const HpcAttentionImplOptions options = TestLayer(mixed_case()).impl_options();
  for (HostLengths lengths : {HostLengths::kBoth, HostLengths::kOffsets, HostLengths::kNone}) {
    EXPECT_EQ(run_layer(main_lane(), mixed_case(), options, lengths), "");
    EXPECT_EQ(run_layer(main_lane(), mixed_case(), options, lengths, /*fast_build=*/true), "");
  }
}

TEST(GpuBackend, ADescriptionIsThatOfTheCpu) {
  TestLayer layer(mixed_case());
  GpuLane& lane = main_lane();
  DeviceMirror mirror(lane, tensors_of(layer));
  mirror.upload();
  HpcAttnMetadataBuilder builder(on_gpu(layer.builder_options(), lane));
  const HpcAttnMetadata on_cpu =
      HpcAttnMetadataBuilder(layer.builder_options()).build(0, layer.common());
  const HpcAttnMetadata metadata = builder.build(0, on_gpu(mirror, layer.common()));
  EXPECT_EQ(metadata.num_decodes, on_cpu.num_decodes);
  EXPECT_EQ(metadata.num_decode_tokens, on_cpu.num_decode_tokens);
  EXPECT_EQ(metadata.num_prefill_tokens, on_cpu.num_prefill_tokens);
  EXPECT_EQ(metadata.max_query_len, on_cpu.max_query_len);
  EXPECT_EQ(metadata.max_kv_len, on_cpu.max_kv_len);
  const cuda::HostCopy offsets(metadata.cu_seqlens_prefill, lane.stream.execution());
  const auto* prefill = offsets.tensor().data_as<const std::int32_t>();
  EXPECT_EQ((std::vector<std::int32_t>(prefill, prefill + 3)),
            (std::vector<std::int32_t>{0, 37, 42}));
  CommonAttnMetadata bound = on_gpu(mirror, layer.common());
  bound.kv_lens_cpu = {};
  EXPECT_EQ(builder.build(0, bound).max_kv_len, layer.builder_options().max_model_len);
}

/// Prologue and attention, each judged by the reference.
std::string run_both(GpuLane& lane, const LayerCase& c, const HpcRopeNormOptions& options,
                     bool weights_on_gpu) {
  TestLayer layer(c);
  TestPrologue prologue(layer, options);
  const std::int64_t num_tokens = layer.query().size(0);
  const GuardedTensor q_scales(DType::kFloat32, {1, num_tokens, c.num_q_heads});
  const HpcRopeNormOptions& host_options = prologue.module().options();
  const HpcAttnMetadata none;
  const HpcRopeNormForwardArgs host_args = prologue.forward_args(none);
  std::vector<Tensor> tensors = tensors_of(layer);
  for (const Tensor& tensor :
       {Tensor(q_scales), host_options.cos_sin_cache, host_args.qkv, host_args.out_q,
        prologue.scales().q_scale, Tensor(prologue.q_weight()), Tensor(prologue.k_weight())}) {
    tensors.push_back(tensor);
  }
  DeviceMirror mirror(lane, tensors);
  mirror.upload();
  lane.stream.wait();

  HpcRopeNormOptions gpu_options = host_options;
  gpu_options.cos_sin_cache = mirror.to_device(host_options.cos_sin_cache);
  HpcRopeNorm module(gpu_options);
  const auto weight = [&](const GuardedTensor& host) {
    return weights_on_gpu ? mirror.to_device(host) : Tensor(host);
  };
  const std::vector<NamedWeight> weights{{"q_norm.weight", weight(prologue.q_weight())},
                                         {"k_norm.weight", weight(prologue.k_weight())}};
  module.process_weights_after_loading(weights);
  const void* address = module.norms() ? module.q_norm_weight().data() : nullptr;
  module.process_weights_after_loading(weights);
  if (module.norms() && module.q_norm_weight().data() != address) return "the weights have moved";

  StepWorkspace workspace(mirror.to_device(q_scales));
  HpcAttnMetadataBuilderOptions builder_options = layer.builder_options();
  if (options.query_quant != QueryQuant::kNone) builder_options.group.q_dtype = DType::kFloat8E4M3;
  HpcAttnMetadataBuilder builder(on_gpu(builder_options, lane));
  const HpcAttnMetadata metadata =
      builder.build(0, on_gpu(mirror, layer.common(workspace.begin_step())));
  const LayerScales scales = on_gpu(mirror, prologue.scales());
  HpcRopeNormForwardArgs rope_args = on_gpu(mirror, host_args, scales, workspace);
  rope_args.metadata = &metadata;
  module.forward(rope_args, lane.stream.execution());
  HpcAttentionForwardArgs args = on_gpu(mirror, prologue.attention_args(metadata), scales);
  args.workspace = &workspace;
  HpcAttentionImpl(layer.impl_options()).forward(args, lane.stream.execution());
  std::string around = testkit::finish(lane, mirror);
  if (!around.empty()) return around;

  const HpcAttnMetadata on_cpu =
      HpcAttnMetadataBuilder(builder_options).build(0, layer.common(metadata.step));
  std::string of_prologue = prologue.check(on_cpu);
  if (!of_prologue.empty()) return of_prologue;
  AttentionOptions want = layer.reference_options(layer.impl_options());
  if (options.query_quant == QueryQuant::kPerTokenHead) {
    want.q_scale =
        Tensor::contiguous(q_scales.tensor().data(), DType::kFloat32, {num_tokens, c.num_q_heads});
  }
  if (options.query_quant == QueryQuant::kStatic) want.q_scale = prologue.scales().q_scale;
  return layer.check(want, prologue.out_q(),
                     gpu_arithmetic(args.query, layer.views().k, layer.common().cu_seqlens_q));
}

TEST(GpuBackend, PrologueAndAttention) {
  struct Case {
    const char* kv;
    HpcRopeNormOptions options;
    KvCacheLayout layout = KvCacheLayout::kNhd;
    DType dtype = DType::kBFloat16;
  };
  const std::vector<Case> cases{
      {"auto", {}},
      {"auto", {.qk_norm_policy = QkNormPolicy::kRopeThenNorm, .norm_eps = 1e-5}},
      {"auto",
       {.style = RopeStyle::kInterleaved,
        .qk_norm_policy = QkNormPolicy::kNormThenRope,
        .norm_scope = NormScope::kToken,
        .norm_eps = 1e-2},
       KvCacheLayout::kPacked,
       DType::kFloat16},
      {"fp8", {.qk_norm_policy = QkNormPolicy::kNormThenRope, .norm_eps = 1e-5}},
      {"fp8",
       {.qk_norm_policy = QkNormPolicy::kNormThenRope,
        .norm_eps = 1e-5,
        .query_quant = QueryQuant::kPerTokenHead}},
      {"fp8_e5m2", {.query_quant = QueryQuant::kStatic}, KvCacheLayout::kPacked, DType::kFloat16},
  };
  const auto run = [](GpuLane& lane, const Case& one) {
    LayerCase c = mixed_case();
    c.kv_cache_dtype = one.kv;
    c.layout = one.layout;
    c.dtype = one.dtype;
    const std::string report = run_both(lane, c, one.options, false);
    return report.empty() ? run_both(lane, c, one.options, true) : report;
  };
  testkit::expect_all_right(cases, run);
}

/// What a layer holds, into the memory of a larger one, or back.
void copy_layer(const TestLayer& layer, const TestLayer& larger, bool back) {
  const HpcAttnMetadata none;
  const HpcAttentionForwardArgs a = layer.forward_args(none);
  const HpcAttentionForwardArgs b = larger.forward_args(none);
  const auto copy = [&](const Tensor& from, const Tensor& to) {
    const auto bytes = std::size_t(from.num_elements() * size_bytes(from.dtype()));
    void* target = back ? from.data() : to.data();
    const void* source = back ? to.data() : from.data();
    std::memcpy(target, source, bytes);
  };
  copy(a.query, b.query);
  copy(a.key, b.key);
  copy(a.value, b.value);
  copy(a.kv_cache, b.kv_cache);
  copy(a.output, b.output);
  copy(a.lse, b.lse);
}

TEST(GpuBackend, ReplaysFollowNewLengths) {
  const auto layer_of = [](std::vector<std::int32_t> q, std::vector<std::int32_t> kv,
                           std::int64_t padding, std::uint64_t seed) {
    return LayerCase{.q_lens = std::move(q),
                     .kv_lens = std::move(kv),
                     .head_dim = 128,
                     .dtype = DType::kBFloat16,
                     .padding = padding,
                     .seed = seed};
  };
  GpuLane& lane = main_lane();
  TestLayer captured(layer_of({1, 1, 1, 1}, {500, 1, 1, 1}, 0, 1));
  std::vector<std::unique_ptr<TestLayer>> steps;
  for (const LayerCase& c :
       {layer_of({1, 1, 1, 1}, {17, 500, 33, 64}, 0, 2), layer_of({1, 1}, {7, 300}, 2, 3),
        layer_of({1, 3}, {90, 3}, 0, 4), layer_of({4}, {260}, 0, 5), layer_of({}, {}, 4, 6),
        layer_of({1, 1, 1, 1}, {500, 500, 500, 500}, 0, 7)}) {
    steps.push_back(std::make_unique<TestLayer>(c));
  }
  std::vector<Tensor> tensors = tensors_of(captured);
  for (const auto& step : steps) {
    const std::vector<Tensor> more = tensors_of(*step);
    tensors.insert(tensors.end(), more.begin(), more.end());
  }
  DeviceMirror mirror(lane, tensors);
  mirror.upload();
  HpcAttnMetadataBuilderOptions options = on_gpu(captured.builder_options(), lane);
  options.max_num_requests = 8;
  options.max_num_tokens = 64;
  options.max_model_len = 512;
  HpcAttnMetadataBuilder builder(options);
  HpcAttnMetadata metadata = builder.build_for_graph_capture(on_gpu(mirror, captured.common()));
  const LayerScales scales = on_gpu(mirror, captured.scales());
  const HpcAttentionForwardArgs args = on_gpu(mirror, captured.forward_args(metadata), scales);
  const HpcAttentionImpl impl(captured.impl_options());
  impl.forward(args, lane.stream.execution());  // compiles
  lane.stream.wait();
  const GpuGraph graph(lane.stream, [&](const Execution& e) { impl.forward(args, e); });
  const void* plan = metadata.plan.data();
  for (const auto& step : steps) {
    step->reset_output();
    copy_layer(*step, captured, /*back=*/false);
    mirror.upload();
    builder.update_in_place(metadata, on_gpu(mirror, step->common()));
    EXPECT_EQ(metadata.plan.data(), plan);
    graph.replay(lane.stream);
    EXPECT_EQ(testkit::finish(lane, mirror), "");
    copy_layer(*step, captured, /*back=*/true);
    EXPECT_EQ(step->wrong_slots(), 0);
    EXPECT_EQ(
        step->check(step->reference_options(step->impl_options()), step->query(),
                    gpu_arithmetic(step->query(), step->views().k, step->common().cu_seqlens_q)),
        "");
  }
}

TEST(GpuBackend, AProfilingRunGivesZerosAndTakesNoKernel) {
  TestLayer layer(mixed_case());
  GpuLane& lane = main_lane();
  DeviceMirror mirror(lane, tensors_of(layer));
  mirror.upload();
  const HpcAttnMetadata none;
  const LayerScales scales = on_gpu(mirror, layer.scales());
  HpcAttentionForwardArgs args = on_gpu(mirror, layer.forward_args(none), scales);
  args.metadata = nullptr;
  HpcAttentionImpl(layer.impl_options()).forward(args, lane.stream.execution());
  EXPECT_EQ(testkit::finish(lane, mirror), "");
  for (std::uint8_t byte : layer.output().bytes()) ASSERT_EQ(byte, 0);
  const auto* lse = layer.lse().data_as<const float>();
  EXPECT_EQ(lse[0], -std::numeric_limits<float>::infinity());
}

TEST(GpuBackend, WhatHasNoKernelIsRefusedAndWritesNothing) {
  LayerCase c = mixed_case();
  c.dtype = DType::kFloat32;
  TestLayer layer(c);
  GpuLane& lane = main_lane();
  EXPECT_NE(error_of([&] {
              HpcAttnMetadataBuilder(on_gpu(layer.builder_options(), lane));
            }).find("dtype float32 runs on the CPU alone"),
            std::string::npos);
  DeviceMirror mirror(lane, tensors_of(layer));
  mirror.upload();
  const auto pool = layer.pool_bytes();
  HpcAttnMetadata metadata;
  const CommonAttnMetadata common = on_gpu(mirror, layer.common());
  metadata.num_decodes = common.num_requests;
  metadata.num_actual_tokens = common.num_actual_tokens;
  metadata.cu_seqlens_q = common.cu_seqlens_q;
  metadata.kv_lens = common.kv_lens;
  metadata.page_table = common.page_table;
  metadata.slot_mapping = common.slot_mapping;
  const LayerScales scales = on_gpu(mirror, layer.scales());
  const HpcAttentionForwardArgs args = on_gpu(mirror, layer.forward_args(metadata), scales);
  const HpcAttentionImpl impl(layer.impl_options());
  EXPECT_NE(error_of([&] {
              impl.forward(args, lane.stream.execution());
            }).find("float32 attention runs on the cpu alone"),
            std::string::npos);
  EXPECT_EQ(testkit::finish(lane, mirror), "");
  EXPECT_EQ(layer.pool_bytes(), pool);
}

}  // namespace
}  // namespace hpcattn
