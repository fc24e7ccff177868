// SPDX-License-Identifier: Apache-2.0
// HpcRopeNorm as a module of a model: its weights over reloads, its support, what it refuses.
#include <gtest/gtest.h>

#include "hpcattn/backend/rope_norm.h"
#include "src/backend/test_prologue.h"

namespace hpcattn {
namespace {

using testkit::error_of;
using testkit::GuardedTensor;
using testkit::LayerCase;
using testkit::norm_options;
using testkit::TestLayer;
using testkit::TestPrologue;

const LayerCase kMixed{.q_lens = {1, 3, 20}, .kv_lens = {90, 3, 41}, .padding = 2};

// ---- weights

TEST(HpcRopeNormTest, WeightsKeepTheirAddressOverReloads) {
  TestLayer layer(kMixed);
  TestPrologue prologue(layer, norm_options());
  const void* q_address = prologue.module().q_norm_weight().data();
  const void* k_address = prologue.module().k_norm_weight().data();
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat8E4M3}) {
    {
      // The loader's tensors live no longer than the call, as with an engine that sleeps.
      testkit::Rng rng(5);
      GuardedTensor weights(dtype, {64, 2});  // strided: one column each
      weights.fill_normal(rng);
      const Tensor q = weights.tensor().select(1, 0);
      const Tensor k = weights.tensor().select(1, 1);
      prologue.load(q, k);
      for (std::int64_t i = 0; i < 64; ++i) {
        EXPECT_EQ(reference::element(prologue.module().q_norm_weight(), {i}),
                  reference::element(q, {i}));
        EXPECT_EQ(reference::element(prologue.module().k_norm_weight(), {i}),
                  reference::element(k, {i}));
      }
    }
    EXPECT_EQ(prologue.module().q_norm_weight().data(), q_address);
    EXPECT_EQ(prologue.module().k_norm_weight().data(), k_address);
  }
}

TEST(HpcRopeNormTest, BadWeightsAreRefusedAndChangeNothing) {
  TestLayer layer(kMixed);
  TestPrologue prologue(layer, norm_options());
  HpcRopeNorm& module = prologue.module();
  const GuardedTensor good = GuardedTensor::of_floats(std::vector<double>(64, 3.0));
  const GuardedTensor longer = GuardedTensor::of_floats(std::vector<double>(128, 3.0));
  const GuardedTensor ints = GuardedTensor::of_ints(std::vector<std::int32_t>(64, 3));
  const double before = reference::element(module.q_norm_weight(), {7});
  const auto error_with = [&](std::vector<NamedWeight> weights) {
    return error_of([&] { module.process_weights_after_loading(weights); });
  };
  EXPECT_EQ(error_with({{"q_norm.weight", good}}),
            "HpcRopeNorm: weight 'k_norm.weight' is not among the 1 that were loaded.");
  EXPECT_EQ(error_with({{"q_norm.weight", good}, {"k_norm.weight", longer}}),
            "HpcRopeNorm: k_norm.weight is float32[128] on cpu, expected shape [64].");
  EXPECT_EQ(error_with({{"q_norm.weight", good}, {"k_norm.weight", ints}}),
            "HpcRopeNorm: k_norm.weight has dtype int32, expected a float one.");
  EXPECT_EQ(reference::element(module.q_norm_weight(), {7}), before);
}

TEST(HpcRopeNormTest, ForwardBeforeLoadingIsRefused) {
  TestLayer layer(kMixed);
  TestPrologue prologue(layer, norm_options());
  HpcRopeNorm fresh(prologue.module().options());
  HpcAttnMetadataBuilder builder(layer.builder_options());
  const HpcAttnMetadata metadata =
      builder.build(0, layer.common(prologue.workspace().begin_step()));
  EXPECT_NE(error_of([&] {
              fresh.forward(prologue.forward_args(metadata));
            }).find("norm weights of layer 'layer' have not been loaded"),
            std::string::npos);
}

TEST(HpcRopeNormTest, WithoutNormsThereAreNoWeights) {
  TestLayer layer(kMixed);
  TestPrologue prologue(layer, {});
  EXPECT_FALSE(prologue.module().norms());
  EXPECT_FALSE(prologue.module().q_norm_weight().defined());
  EXPECT_NO_THROW(prologue.module().process_weights_after_loading({}));
}

// ---- support and refusals

TEST(HpcRopeNormTest, SupportGivesEveryReason) {
  TestLayer layer(kMixed);
  TestPrologue prologue(layer, {});
  const HpcModule& module = prologue.module();
  BackendRequest request{.num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64};
  EXPECT_TRUE(module.support(request));
  request.head_dim = 72;
  request.attention_type = AttentionType::kEncoderOnly;
  request.kv_cache_dtype = "fp8";
  const ModuleSupport answer = module.support(request);
  EXPECT_FALSE(answer);
  ASSERT_EQ(answer.refusals.size(), 4U);
  EXPECT_NE(answer.refusals[0].find("head_dim is 72"), std::string::npos);
  EXPECT_NE(answer.refusals[1].find("made for 4:2 heads of 64"), std::string::npos);
  EXPECT_NE(answer.refusals[2].find("made for 'auto'"), std::string::npos);
  EXPECT_NE(answer.refusals[3].find("only a decoder's"), std::string::npos);
  request = {.num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64};
  request.query_dtype = DType::kFloat8E4M3;
  EXPECT_EQ(module.support(request).refusals.back(),
            "query_dtype is float8_e4m3, and this prologue makes one of the model's dtype");
}

TEST(HpcRopeNormTest, ConstructorRefusals) {
  TestLayer layer(kMixed);
  TestPrologue prologue(layer, norm_options());
  const auto error_with = [&](auto change) {
    HpcRopeNormOptions options = prologue.module().options();
    change(options);
    return error_of([&] { HpcRopeNorm module(options); });
  };
  const auto has = [](const std::string& error, const char* part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  has(error_with([](auto& o) { o.layer_name = ""; }), "layer_name is empty");
  has(error_with([](auto& o) { o.num_kv_heads = 0; }), "num_kv_heads 0");
  has(error_with([](auto& o) { o.cos_sin_cache = {}; }), "cos_sin_cache is not given");
  has(error_with([](auto& o) { o.head_dim = 32; }), "even rotary_dim of at most 32");
  has(error_with([](auto& o) { o.norm_eps = -1.0; }), "norm_eps is -1, expected the model's own");
  has(error_with([](auto& o) { o.qk_norm_policy = QkNormPolicy::kNone; }), "would not be used");
  has(error_with([](auto& o) { o.kv_cache_dtype = "int8"; }), "'int8' is not known");
  has(error_with([](auto& o) { o.query_quant = QueryQuant::kStatic; }),
      "a float8 query needs a float8 KV cache, got kv_cache_dtype 'auto'");
}

TEST(HpcRopeNormTest, RefusedCallsWriteNothing) {
  LayerCase c = kMixed;
  c.kv_cache_dtype = "fp8";
  TestLayer layer(c);
  TestPrologue prologue(layer, {.query_quant = QueryQuant::kStatic});
  HpcAttnMetadataBuilder builder(layer.builder_options());
  const HpcAttnMetadata good = builder.build(0, layer.common(prologue.workspace().begin_step()));
  const auto pool = layer.pool_bytes();
  const auto out_q = prologue.out_q().bytes();
  const auto refused = [&](const char* part, auto change) {
    HpcAttnMetadata metadata = good;
    HpcRopeNormForwardArgs args = prologue.forward_args(metadata);
    LayerScales scales = prologue.scales();
    args.scales = &scales;
    change(args, metadata, scales);
    const std::string error = error_of([&] { prologue.module().forward(args); });
    EXPECT_NE(error.find(part), std::string::npos) << error;
    EXPECT_EQ(layer.pool_bytes(), pool) << part;
    EXPECT_EQ(prologue.out_q().bytes(), out_q) << part;
    EXPECT_FALSE(prologue.workspace().peek("layer", good.step)) << part;
  };
  refused("workspace is not given", [](auto& a, auto&, auto&) { a.workspace = nullptr; });
  refused("kv_cache is not given", [](auto& a, auto&, auto&) { a.kv_cache = {}; });
  refused("qkv is float32", [](auto& a, auto&, auto&) { a.qkv = a.qkv.slice(1, 0, 64); });
  refused("out_q has dtype float32", [&](auto& a, auto&, auto&) { a.out_q = layer.query(); });
  refused("expected k_scale and v_scale", [](auto&, auto&, auto& s) { s.k_scale = {}; });
  refused("scales.q_scale is not given", [](auto&, auto&, auto& s) { s.q_scale = {}; });
  refused("for step 0", [](auto&, auto& m, auto&) { m.step = 0; });
  const GuardedTensor lens = GuardedTensor::of_ints(std::vector<std::int32_t>{90, 2, 41});
  refused("below the request's 3 new tokens", [&](auto&, auto& m, auto&) { m.kv_lens = lens; });
}

TEST(HpcRopeNormTest, AnotherDeviceThanTheTablesIsRefused) {
  TestLayer layer(kMixed);
  TestPrologue prologue(layer, {});
  HpcRopeNormForwardArgs args;
  const Tensor& out_q = prologue.out_q();
  args.out_q = Tensor(out_q.data(), out_q.dtype(), out_q.sizes(), out_q.strides(),
                      {.type = DeviceType::kCuda, .index = 0});
  const std::string error = error_of([&] { prologue.module().forward(args); });
  EXPECT_NE(error.find("HpcRopeNorm: out_q is on cuda:0, expected cpu"), std::string::npos)
      << error;
}

TEST(HpcRopeNormTest, ASecondPrologueInAStepIsRefused) {
  TestLayer layer(kMixed);
  TestPrologue prologue(layer, {});
  HpcAttnMetadataBuilder builder(layer.builder_options());
  const HpcAttnMetadata metadata =
      builder.build(0, layer.common(prologue.workspace().begin_step()));
  prologue.module().forward(prologue.forward_args(metadata));
  EXPECT_NE(error_of([&] {
              prologue.module().forward(prologue.forward_args(metadata));
            }).find("has run in step 1 already"),
            std::string::npos);
}

}  // namespace
}  // namespace hpcattn
