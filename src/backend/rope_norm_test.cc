// SPDX-License-Identifier: Apache-2.0
#include "hpcattn/backend/rope_norm.h"

#include <gtest/gtest.h>

#include <thread>

#include "hpcattn/error.h"
#include "src/backend/test_prologue.h"

namespace hpcattn {
namespace {

using testkit::GuardedTensor;
using testkit::LayerCase;
using testkit::norm_options;
using testkit::TestLayer;
using testkit::TestPrologue;

const LayerCase kMixed{.q_lens = {1, 3, 20}, .kv_lens = {90, 3, 41}, .padding = 2};

/// Prologue, then attention, each judged by the float64 reference. "" when all is well.
std::string run_both(TestLayer& layer, const HpcRopeNormOptions& options) {
  TestPrologue prologue(layer, options);
  HpcAttnMetadataBuilderOptions builder_options = layer.builder_options();
  if (options.query_quant != QueryQuant::kNone) builder_options.group.q_dtype = DType::kFloat8E4M3;
  HpcAttnMetadataBuilder builder(builder_options);
  const HpcAttnMetadata metadata =
      builder.build(0, layer.common(prologue.workspace().begin_step()));
  prologue.module().forward(prologue.forward_args(metadata));
  const std::string of_prologue = prologue.check(metadata);
  if (!of_prologue.empty()) return of_prologue;

  const auto result = prologue.workspace().peek(layer.description().name, metadata.step);
  if (!result || !result->kv_written) return "the workspace does not know that KV is written";
  AttentionOptions want = layer.reference_options(layer.impl_options());
  if (options.query_quant == QueryQuant::kPerTokenHead) want.q_scale = result->q_scale;
  if (options.query_quant == QueryQuant::kStatic) want.q_scale = prologue.scales().q_scale;
  const auto pool = layer.pool_bytes();
  HpcAttentionImpl(layer.impl_options()).forward(prologue.attention_args(metadata));
  if (layer.pool_bytes() != pool) return "the attention wrote KV that the prologue had written";
  return layer.check(want, prologue.out_q());
}

struct PrologueParam {
  const char* name;
  DType dtype;
  const char* kv;
  HpcRopeNormOptions options;
  KvCacheLayout layout = KvCacheLayout::kNhd;
};

class PrologueTest : public ::testing::TestWithParam<PrologueParam> {};

TEST_P(PrologueTest, PrologueAndAttentionEqualTheReference) {
  LayerCase c = kMixed;
  c.dtype = GetParam().dtype;
  c.kv_cache_dtype = GetParam().kv;
  c.layout = GetParam().layout;
  TestLayer layer(c);
  EXPECT_EQ(run_both(layer, GetParam().options), "");
}

const PrologueParam kParams[] = {
    {"f32", DType::kFloat32, "auto", {}},
    {"bf16",
     DType::kBFloat16,
     "auto",
     {.qk_norm_policy = QkNormPolicy::kRopeThenNorm, .norm_eps = 1e-5}},
    {"f16_packed",
     DType::kFloat16,
     "auto",
     {.qk_norm_policy = QkNormPolicy::kNormThenRope, .norm_eps = 1e-6},
     KvCacheLayout::kPacked},
    {"interleaved_token_scope",
     DType::kFloat32,
     "auto",
     {.style = RopeStyle::kInterleaved,
      .qk_norm_policy = QkNormPolicy::kNormThenRope,
      .norm_scope = NormScope::kToken,
      .norm_eps = 1e-2}},
    {"fp8_kv_wide_query",
     DType::kBFloat16,
     "fp8",
     {.qk_norm_policy = QkNormPolicy::kNormThenRope, .norm_eps = 1e-5}},
    {"fp8_query",
     DType::kBFloat16,
     "fp8",
     {.qk_norm_policy = QkNormPolicy::kNormThenRope,
      .norm_eps = 1e-5,
      .query_quant = QueryQuant::kPerTokenHead}},
    {"fp8_query_upper_max",
     DType::kFloat32,
     "fp8_e4m3",
     {.query_quant = QueryQuant::kPerTokenHead, .upper_max = 200.0},
     KvCacheLayout::kHnd},
    {"fp8_query_static_e5m2",
     DType::kFloat16,
     "fp8_e5m2",
     {.query_quant = QueryQuant::kStatic},
     KvCacheLayout::kPacked},
};

INSTANTIATE_TEST_SUITE_P(HpcRopeNorm, PrologueTest, ::testing::ValuesIn(kParams),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(HpcRopeNormTest, PerHeadScalesReachCacheAndAttention) {
  LayerCase c = kMixed;
  c.dtype = DType::kBFloat16;
  c.kv_cache_dtype = "fp8";
  c.per_head_scales = true;
  TestLayer layer(c);
  EXPECT_EQ(run_both(layer, {.query_quant = QueryQuant::kPerTokenHead}), "");
}

// Positions that the model gives, one a token or three (mrope), and rows of padding after them.
TEST(HpcRopeNormTest, PositionsOfTheModel) {
  for (bool mrope : {false, true}) {
    TestLayer layer(kMixed);
    HpcRopeNormOptions options;
    if (mrope) options.mrope_section = {16, 8, 8};
    TestPrologue prologue(layer, options);
    const std::int64_t num_tokens = layer.query().size(0);
    testkit::Rng rng(4);
    std::vector<std::int64_t> values;
    for (std::int64_t i = 0; i < num_tokens * (mrope ? 3 : 1); ++i) {
      values.push_back(rng.integer(0, 599));
    }
    const GuardedTensor memory = GuardedTensor::of_ints(values);
    Tensor positions = memory;
    if (mrope) {
      positions = Tensor::contiguous(positions.data(), DType::kInt64, {3, num_tokens});
    }
    prologue.set_positions(positions);
    HpcAttnMetadataBuilder builder(layer.builder_options());
    HpcAttnMetadata metadata = builder.build(0, layer.common(prologue.workspace().begin_step()));
    prologue.module().forward(prologue.forward_args(metadata));
    EXPECT_EQ(prologue.check(metadata), "") << mrope;

    // The same with slots of the live rows alone: positions of the others are not read.
    const auto out_q = prologue.out_q().bytes();
    CommonAttnMetadata common = layer.common(prologue.workspace().begin_step());
    common.num_actual_tokens = layer.num_live();
    common.slot_mapping = common.slot_mapping.slice(0, 0, layer.num_live());
    metadata = builder.build(0, common);
    const std::int64_t last = positions.num_elements() - 1;
    memory.tensor().data_as<std::int64_t>()[last] = -7;  // of a row of padding
    prologue.module().forward(prologue.forward_args(metadata));
    EXPECT_EQ(prologue.out_q().bytes(), out_q);
  }
}

TEST(HpcRopeNormTest, RowsPastTheSlotsBecomeZero) {
  LayerCase c = kMixed;
  c.kv_cache_dtype = "fp8";
  TestLayer layer(c);
  TestPrologue prologue(layer, {.query_quant = QueryQuant::kPerTokenHead});
  HpcAttnMetadataBuilder builder(layer.builder_options());
  CommonAttnMetadata common = layer.common(prologue.workspace().begin_step());
  common.num_actual_tokens = layer.num_live();  // the query has two rows more
  common.slot_mapping = common.slot_mapping.slice(0, 0, layer.num_live());
  const HpcAttnMetadata metadata = builder.build(0, common);
  prologue.module().forward(prologue.forward_args(metadata));
  const Tensor padding = prologue.out_q().tensor().slice(0, layer.num_live(), 2);
  for (std::int64_t i = 0; i < 2 * 4 * 64; ++i) {
    ASSERT_EQ(padding.data_as<const std::uint8_t>()[i], 0);
  }
  const Tensor scale = prologue.workspace().take("layer", metadata.step)->q_scale;
  EXPECT_EQ(reference::element(scale, {layer.num_live() + 1, 3}), 1.0);
}

TEST(HpcRopeNormTest, AProfilingRunGivesZeros) {
  TestLayer layer(kMixed);
  TestPrologue prologue(layer, {});
  HpcAttnMetadataBuilder builder(layer.builder_options());
  const HpcAttnMetadata metadata =
      builder.build(0, layer.common(prologue.workspace().begin_step()));
  for (bool no_metadata : {true, false}) {
    HpcRopeNormForwardArgs args = prologue.forward_args(metadata);
    if (no_metadata) args.metadata = nullptr;
    if (!no_metadata) args.kv_cache = Tensor::contiguous(nullptr, DType::kFloat32, {0});
    if (no_metadata) args.workspace = nullptr;
    prologue.module().forward(args);
    for (std::uint8_t byte : prologue.out_q().bytes()) ASSERT_EQ(byte, 0);
    EXPECT_FALSE(prologue.workspace().peek("layer", metadata.step));
  }
}

TEST(HpcRopeNormTest, ALayerThatSharesKvStoresNone) {
  TestLayer layer({.q_lens = {2}, .kv_lens = {20}});
  HpcAttnMetadataBuilder builder(layer.builder_options());
  HpcAttentionImpl(layer.impl_options())
      .forward(layer.forward_args(builder.build_for_drafting(layer.common())));  // the target's KV
  TestPrologue prologue(layer, {.stores_kv = false});
  const HpcAttnMetadata metadata =
      builder.build(0, layer.common(prologue.workspace().begin_step()));
  const auto pool = layer.pool_bytes();
  HpcRopeNormForwardArgs args = prologue.forward_args(metadata);
  args.kv_cache = {};
  prologue.module().forward(args);
  EXPECT_EQ(layer.pool_bytes(), pool);
  EXPECT_FALSE(prologue.workspace().peek("layer", metadata.step)->kv_written);
  HpcAttentionImplOptions options = layer.impl_options();
  options.kv_sharing_target_layer_name = "target";
  layer.reset_output();
  HpcAttentionImpl(options).forward(prologue.attention_args(metadata));
  EXPECT_EQ(layer.pool_bytes(), pool);
  EXPECT_EQ(layer.check(layer.reference_options(options), prologue.out_q()), "");
}

TEST(HpcRopeNormTest, OutKAndOutVAreWhatIsStored) {
  TestLayer layer({.q_lens = {2}, .kv_lens = {20}});
  TestPrologue prologue(layer, {});
  HpcAttnMetadataBuilder builder(layer.builder_options());
  const HpcAttnMetadata metadata =
      builder.build(0, layer.common(prologue.workspace().begin_step()));
  HpcRopeNormForwardArgs args = prologue.forward_args(metadata);
  const GuardedTensor out_k(DType::kFloat32, {2, 2, 64});
  const GuardedTensor out_v(DType::kFloat32, {2, 2, 64});
  args.out_k = out_k;
  args.out_v = out_v;
  prologue.module().forward(args);
  for (std::int64_t token : {0, 1}) {
    for (std::int64_t dim : {0, 63}) {
      EXPECT_EQ(reference::element(out_k, {token, 1, dim}),
                layer.in_slot(layer.views().k, layer.slot(token), 1, dim));
      EXPECT_EQ(reference::element(out_v, {token, 1, dim}),
                layer.in_slot(layer.views().v, layer.slot(token), 1, dim));
    }
  }
}

// Models on threads of their own share nothing.
TEST(HpcRopeNormTest, SeveralModelsAtOnce) {
  std::vector<std::string> failures(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < failures.size(); ++i) {
    threads.emplace_back([&failures, i] {
      LayerCase c = kMixed;
      c.seed = i + 1;
      TestLayer layer(c);
      failures[i] = run_both(layer, norm_options());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

}  // namespace
}  // namespace hpcattn
