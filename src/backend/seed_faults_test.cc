// SPDX-License-Identifier: Apache-2.0
// What vLLM's HPC attention backend (PR 46020) over hpc-ops gets wrong, a test a row: docs/seeds.md
// names each. They go through the backend's classes, as an engine does.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "hpcattn/error.h"
#include "src/backend/test_prologue.h"

namespace hpcattn {
namespace {

using testkit::GuardedBuffer;
using testkit::GuardedTensor;
using testkit::LayerCase;
using testkit::TestLayer;
using testkit::TestPrologue;

const LayerCase kMixed{.q_lens = {1, 1, 37, 5}, .kv_lens = {90, 1, 37, 70}, .padding = 3};

// A window of 1 leaves each token itself alone: the output is its own V, whatever came before.
TEST(SeedFaultsTest, SlidingWindowIsApplied) {
  TestLayer layer(kMixed);
  HpcAttentionImplOptions options = layer.impl_options();
  options.sliding_window = 1;
  ASSERT_EQ(testkit::run_and_check(layer, options), "");
  for (std::int64_t token = 0; token < layer.num_live(); ++token) {
    for (std::int64_t head = 0; head < 4; ++head) {
      ASSERT_EQ(reference::element(layer.output(), {token, head, 5}),
                reference::element(layer.value(), {token, head / 2, 5}))
          << token;
    }
  }
}

// A scale of 0 weighs all tokens alike: a lone request's last output is the mean of its V.
TEST(SeedFaultsTest, ScaleIsApplied) {
  TestLayer layer({.q_lens = {8}, .kv_lens = {8}});
  HpcAttentionImplOptions options = layer.impl_options();
  options.scale = 0.0;
  ASSERT_EQ(testkit::run_and_check(layer, options), "");
  double mean = 0.0;
  for (std::int64_t token = 0; token < 8; ++token) {
    mean += reference::element(layer.value(), {token, 1, 9}) / 8;
  }
  EXPECT_NEAR(reference::element(layer.output(), {7, 3, 9}), mean, 1e-6);
  EXPECT_NEAR(reference::element(layer.lse(), {7, 3}), std::log(8.0), 1e-6);
  options.scale = 1.0 / std::sqrt(128.0);  // what is built in there, at head_dim 64
  EXPECT_EQ(testkit::run_and_check(layer, options), "");
}

// At inputs of 1e-3 the mean square is 1e-6, so an epsilon of 1e-5 and one of 1e-6 differ by 2.35
// times.
TEST(SeedFaultsTest, NormEpsilonIsAnArgument) {
  for (double eps : {1e-6, 1e-5}) {
    TestLayer layer({.q_lens = {1}, .kv_lens = {1}});
    TestPrologue prologue(layer, {.qk_norm_policy = QkNormPolicy::kNormThenRope, .norm_eps = eps});
    const GuardedTensor ones = GuardedTensor::of_floats(std::vector<double>(64, 1.0));
    prologue.load(ones, ones);
    std::fill_n(prologue.qkv().tensor().data_as<float>(), prologue.qkv().tensor().num_elements(),
                1e-3F);
    HpcAttnMetadataBuilder builder(layer.builder_options());
    const HpcAttnMetadata metadata =
        builder.build(0, layer.common(prologue.workspace().begin_step()));
    prologue.module().forward(prologue.forward_args(metadata));
    const double want = 1e-3 / std::sqrt(1e-6 + eps);  // position 0 rotates nothing
    EXPECT_NEAR(reference::element(prologue.out_q(), {0, 0, 0}), want, 1e-6);
    EXPECT_NEAR(layer.in_slot(layer.views().k, layer.slot(0), 1, 63), want, 1e-6);
  }
}

TEST(SeedFaultsTest, Float16IsSupportedWhereItIsAdvertised) {
  LayerCase c = kMixed;
  c.dtype = DType::kFloat16;
  TestLayer layer(c);
  EXPECT_EQ(testkit::run_and_check(layer, layer.impl_options()), "");
  TestLayer fused(c);
  TestPrologue prologue(fused, {});
  HpcAttnMetadataBuilder builder(fused.builder_options());
  const HpcAttnMetadata metadata =
      builder.build(0, fused.common(prologue.workspace().begin_step()));
  prologue.module().forward(prologue.forward_args(metadata));
  HpcAttentionImpl(fused.impl_options()).forward(prologue.attention_args(metadata));
  EXPECT_EQ(prologue.check(metadata), "");
  EXPECT_EQ(fused.check(fused.reference_options(fused.impl_options()), prologue.out_q()), "");
}

TEST(SeedFaultsTest, Fp8KvWorksWithoutTheFusedPrologue) {
  for (const char* kv : {"fp8_e4m3", "fp8_e5m2"}) {
    LayerCase c = kMixed;
    c.dtype = DType::kBFloat16;
    c.kv_cache_dtype = kv;
    TestLayer layer(c);
    EXPECT_EQ(testkit::run_and_check(layer, layer.impl_options()), "") << kv;
  }
}

// One step, two layers over the same metadata: one has a fused prologue, the other has not. The
// first one's KV is written once, by the prologue; the second one's by its attention.
TEST(SeedFaultsTest, KvIsWrittenUnlessThisLayersPrologueDidInThisStep) {
  LayerCase c = kMixed;
  c.name = "layers.0";
  TestLayer fused(c);
  c.name = "layers.1";
  TestLayer plain(c);  // the same seed: the same pages and slots
  TestPrologue prologue(fused, {});
  StepWorkspace& workspace = prologue.workspace();
  HpcAttnMetadataBuilder builder(fused.builder_options());
  HpcAttnMetadata metadata = builder.build(0, fused.common(workspace.begin_step()));
  const auto run_plain = [&] {
    HpcAttentionForwardArgs args = plain.forward_args(metadata);
    args.workspace = &workspace;
    plain.reset_output();
    HpcAttentionImpl(plain.impl_options()).forward(args);
    EXPECT_EQ(plain.wrong_slots(), 0);
    EXPECT_EQ(plain.check(plain.reference_options(plain.impl_options())), "");
  };
  const HpcAttentionImpl impl(fused.impl_options());
  prologue.module().forward(prologue.forward_args(metadata));
  impl.forward(prologue.attention_args(metadata));
  EXPECT_EQ(prologue.check(metadata), "");  // not overwritten by K and V as they were before RoPE
  run_plain();

  // The next step has no prologue at all, and nothing of the last one's is left.
  metadata = builder.build(0, fused.common(workspace.begin_step()));
  HpcAttentionForwardArgs args = fused.forward_args(metadata);
  args.workspace = &workspace;
  impl.forward(args);
  EXPECT_EQ(fused.wrong_slots(), 0);
}

// Two models in one process with layers of the same name, in turns over one metadata: each has its
// own weights and scales. Metadata is only read: its bytes stay as they were.
TEST(SeedFaultsTest, NoRegistryAndNothingOfALayerOnSharedMetadata) {
  LayerCase c = kMixed;
  c.kv_cache_dtype = "fp8";
  TestLayer a(c);
  TestLayer b(c);
  const HpcRopeNormOptions options{.qk_norm_policy = QkNormPolicy::kNormThenRope,
                                   .norm_eps = 1e-5,
                                   .query_quant = QueryQuant::kPerTokenHead};
  TestPrologue first(a, options);
  TestPrologue second(b, options);
  second.load(second.k_weight(), second.q_weight());  // weights that first does not have
  first.workspace().begin_step();
  second.workspace().begin_step();
  HpcAttnMetadataBuilderOptions builder_options = a.builder_options();
  builder_options.group.q_dtype = DType::kFloat8E4M3;
  HpcAttnMetadataBuilder builder(builder_options);
  const HpcAttnMetadata metadata = builder.build(0, a.common(1));
  const auto image_of = [&] {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(&metadata);
    return std::vector<std::uint8_t>(bytes, bytes + sizeof(metadata));
  };
  const auto image = image_of();

  first.module().forward(first.forward_args(metadata));
  const auto first_q = first.out_q().bytes();
  second.module().forward(second.forward_args(metadata));
  EXPECT_EQ(first.out_q().bytes(), first_q);
  EXPECT_EQ(first.check(metadata), "");
  EXPECT_NE(second.check(metadata), "");  // it has other weights than those it would judge by
  const Tensor scale = first.workspace().peek("layer", 1)->q_scale;
  HpcAttentionImpl(a.impl_options()).forward(first.attention_args(metadata));
  AttentionOptions want = a.reference_options(a.impl_options());
  want.q_scale = scale;
  EXPECT_EQ(a.check(want, first.out_q()), "");
  EXPECT_EQ(image_of(), image);
}

// Seven speculative tokens, and requests that drafted fewer.
TEST(SeedFaultsTest, AnyNumberOfSpeculativeTokensRaggedToo) {
  TestLayer layer({.q_lens = {8, 3, 1, 8, 0, 5}, .kv_lens = {100, 3, 64, 8, 0, 65}});
  HpcAttnMetadataBuilderOptions options = layer.builder_options();
  options.num_speculative_tokens = 7;
  HpcAttnMetadataBuilder builder(options);
  const HpcAttnMetadata metadata = builder.build(0, layer.common());
  EXPECT_EQ(metadata.num_decodes, 6);
  EXPECT_EQ(metadata.num_prefills, 0);
  HpcAttentionImpl(layer.impl_options()).forward(layer.forward_args(metadata));
  EXPECT_EQ(layer.wrong_slots(), 0);
  EXPECT_EQ(layer.check(layer.reference_options(layer.impl_options())), "");
}

TEST(SeedFaultsTest, AnyPageSizeHeadDimAndGroup) {
  std::uint64_t seed = 0;
  for (std::int64_t page_size : {8, 24, 64, 256}) {
    for (std::int64_t head_dim : HpcAttentionBackend::supported_head_dims()) {
      for (std::int64_t group : {1, 3, 7}) {
        LayerCase c{.q_lens = {1, 9}, .kv_lens = {70, 30}, .seed = ++seed};
        c.page_size = page_size;
        c.head_dim = head_dim;
        c.num_q_heads = 2 * group;
        TestLayer layer(c);
        EXPECT_EQ(testkit::run_and_check(layer, layer.impl_options()), "")
            << page_size << " " << head_dim << " " << group;
      }
    }
  }
}

// The pool of every test here starts as NaN. After a step the slots past each request's end still
// are, and no output is.
TEST(SeedFaultsTest, UnusedSlotsOfALastPageNeedNotBeZeroed) {
  for (const char* kv : {"auto", "fp8"}) {
    LayerCase c{.q_lens = {1, 3}, .kv_lens = {17, 3}};
    c.kv_cache_dtype = kv;
    TestLayer layer(c);
    ASSERT_EQ(testkit::run_and_check(layer, layer.impl_options()), "");
    const std::int64_t after =
        layer.slot(0) + 1;  // position 17, in the second page of the first request
    EXPECT_TRUE(std::isnan(layer.in_slot(layer.views().k, after, 0, 0))) << kv;
    EXPECT_TRUE(std::isnan(layer.in_slot(layer.views().v, after, 1, 63))) << kv;
  }
}

// A pool of 2^33 elements of which two pages are touched: the last one, and the first.
TEST(SeedFaultsTest, OffsetsIntoThePoolAre64Bit) {
  constexpr std::int64_t kPageElements = 2 * 16 * 2 * 64;
  constexpr std::int64_t kPages = (std::int64_t{1} << 33) / kPageElements;
  const GuardedBuffer memory(std::size_t(kPages * kPageElements), testkit::GuardSide::kAfter,
                             /*reserve_only=*/true);
  const Tensor cache =
      Tensor::contiguous(memory.data(), DType::kFloat8E4M3, {kPages, 2, 16, 2, 64});
  ASSERT_GT(cache.num_elements(), std::int64_t{1} << 32);

  LayerCase c{.q_lens = {20}, .kv_lens = {20}};
  c.kv_cache_dtype = "fp8";
  TestLayer layer(c);
  HpcAttnMetadataBuilder builder(layer.builder_options());
  CommonAttnMetadata common = layer.common();
  const GuardedTensor table(DType::kInt32, {1, 2});
  table.tensor().data_as<std::int32_t>()[0] = static_cast<std::int32_t>(kPages - 1);
  table.tensor().data_as<std::int32_t>()[1] = 0;
  std::vector<std::int64_t> slots;
  for (std::int64_t i = 0; i < 20; ++i) slots.push_back(i < 16 ? (kPages - 1) * 16 + i : i - 16);
  const GuardedTensor slot_mapping = GuardedTensor::of_ints(slots);
  common.page_table = table;
  common.slot_mapping = slot_mapping;
  const HpcAttnMetadata metadata = builder.build(0, common);
  HpcAttentionForwardArgs args = layer.forward_args(metadata);
  args.kv_cache = cache;
  HpcAttentionImpl(layer.impl_options()).forward(args);
  const auto got = layer.output().bytes();

  // The same step in a small pool gives the same bits.
  layer.reset_output();
  const HpcAttnMetadata small = builder.build(0, layer.common());
  HpcAttentionImpl(layer.impl_options()).forward(layer.forward_args(small));
  EXPECT_EQ(layer.check(layer.reference_options(layer.impl_options())), "");
  EXPECT_EQ(layer.output().bytes(), got);
}

TEST(SeedFaultsTest, RopeWithoutNormInBFloat16At256DecodeRows) {
  LayerCase c;
  for (std::int32_t i = 0; i < 256; ++i) {
    c.q_lens.push_back(1);
    c.kv_lens.push_back(1 + i % 40);
  }
  c.dtype = DType::kBFloat16;
  TestLayer layer(c);
  TestPrologue prologue(layer, {.qk_norm_policy = QkNormPolicy::kNone});
  HpcAttnMetadataBuilder builder(layer.builder_options());
  const HpcAttnMetadata metadata =
      builder.build(0, layer.common(prologue.workspace().begin_step()));
  ASSERT_EQ(metadata.num_decodes, 256);
  prologue.module().forward(prologue.forward_args(metadata));
  EXPECT_EQ(prologue.check(metadata), "");
  HpcAttentionImpl(layer.impl_options()).forward(prologue.attention_args(metadata));
  EXPECT_EQ(layer.check(layer.reference_options(layer.impl_options()), prologue.out_q()), "");
}

// Captured with short requests, replayed with a long one: the plan splits it as a fresh plan does.
TEST(SeedFaultsTest, SplitsFollowTheLengthsOfEachReplay) {
  TestLayer captured({.q_lens = {1, 1}, .kv_lens = {5, 5}});
  HpcAttnMetadataBuilderOptions options = captured.builder_options();
  options.max_model_len = 4096;
  options.execution.num_threads = 4;
  HpcAttnMetadataBuilder builder(options);
  HpcAttnMetadata metadata = builder.build_for_graph_capture(captured.common());
  EXPECT_EQ(summarize(metadata.plan).num_partials, 0);
  TestLayer step({.q_lens = {1, 1}, .kv_lens = {4000, 9}});
  builder.update_in_place(metadata, step.common());
  EXPECT_GT(summarize(metadata.plan).num_partials, 0);
  HpcAttentionImpl(step.impl_options()).forward(step.forward_args(metadata));
  EXPECT_EQ(step.check(step.reference_options(step.impl_options())), "");
}

// One array of Q scales [num_tokens, num_heads] serves decodes and prefills of a mixed step, and K
// and V scales are one a head.
TEST(SeedFaultsTest, OneLayoutOfQScalesAndKvScalesPerHead) {
  LayerCase c = kMixed;
  c.dtype = DType::kBFloat16;
  c.kv_cache_dtype = "fp8";
  c.per_head_scales = true;
  TestLayer layer(c);
  TestPrologue prologue(layer, {.query_quant = QueryQuant::kPerTokenHead});
  HpcAttnMetadataBuilderOptions builder_options = layer.builder_options();
  builder_options.group.q_dtype = DType::kFloat8E4M3;
  HpcAttnMetadataBuilder builder(builder_options);
  const HpcAttnMetadata metadata =
      builder.build(0, layer.common(prologue.workspace().begin_step()));
  ASSERT_GT(metadata.num_decodes, 0);
  ASSERT_GT(metadata.num_prefills, 0);
  prologue.module().forward(prologue.forward_args(metadata));
  EXPECT_EQ(prologue.check(metadata), "");
  const Tensor q_scale = prologue.workspace().peek("layer", metadata.step)->q_scale;
  EXPECT_EQ(to_string(q_scale), "float32[47, 4] on cpu");
  HpcAttentionImpl(layer.impl_options()).forward(prologue.attention_args(metadata));
  AttentionOptions want = layer.reference_options(layer.impl_options());
  want.q_scale = q_scale;
  EXPECT_EQ(layer.check(want, prologue.out_q()), "");
}

TEST(SeedFaultsTest, FusedOutputQuantisationIsServed) {
  TestLayer layer(kMixed);
  HpcAttnMetadataBuilder builder(layer.builder_options());
  const HpcAttnMetadata metadata = builder.build(0, layer.common());
  const HpcAttentionImpl impl(layer.impl_options());
  impl.forward(layer.forward_args(metadata));
  const GuardedTensor fp8(DType::kFloat8E4M3, {layer.num_live() + 3, 4, 64});
  const GuardedTensor scale =
      GuardedTensor::of_floats({0.001});  // small: the largest values saturate
  HpcAttentionForwardArgs args = layer.forward_args(metadata);
  args.output = fp8;
  args.output_scale = scale;
  impl.forward(args);
  std::int64_t saturated = 0;
  for (std::int64_t token = 0; token < layer.num_live(); ++token) {
    for (std::int64_t head = 0; head < 4; ++head) {
      for (std::int64_t dim = 0; dim < 64; ++dim) {
        const double wide = reference::element(layer.output(), {token, head, dim}) / double(0.001F);
        const double got = reference::element(fp8, {token, head, dim});
        saturated += std::abs(got) == 448.0 ? 1 : 0;
        ASSERT_NEAR(got, std::clamp(wide, -448.0, 448.0), std::abs(wide) / 15.9 + 0.002);
      }
    }
  }
  EXPECT_GT(saturated, 0);
}

TEST(SeedFaultsTest, PaddingRowsOfTheOutputAreZero) {
  LayerCase c = kMixed;
  c.padding = 5;
  for (const char* kv : {"auto", "fp8"}) {
    c.kv_cache_dtype = kv;
    TestLayer layer(c);
    ASSERT_EQ(testkit::run_and_check(layer, layer.impl_options()), "");
    const Tensor rows = layer.output().tensor().slice(0, layer.num_live(), 5);
    for (std::int64_t i = 0; i < rows.num_elements(); ++i) {
      ASSERT_EQ(rows.data_as<float>()[i], 0.0F) << kv << " " << i;
    }
  }
}

}  // namespace
}  // namespace hpcattn
