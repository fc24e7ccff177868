// SPDX-License-Identifier: Apache-2.0
#include "hpcattn/backend/attention_impl.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "hpcattn/counters.h"
#include "hpcattn/error.h"
#include "src/backend/test_layer.h"

namespace hpcattn {
namespace {

using testkit::error_of;
using testkit::GuardedTensor;
using testkit::LayerCase;
using testkit::TestLayer;

const LayerCase kMixed{.q_lens = {1, 1, 37, 5}, .kv_lens = {90, 1, 37, 70}, .padding = 3};

HpcAttnMetadata metadata_of(HpcAttnMetadataBuilder& builder, const TestLayer& layer) {
  return builder.build(0, layer.common());
}

std::int64_t bits_set(const std::vector<std::uint8_t>& bytes) {
  std::int64_t count = 0;
  for (std::uint8_t byte : bytes) count += byte != 0 ? 1 : 0;
  return count;
}

// ---- decode, prefill, mixed, over every layout and dtype

struct DTypePair {
  DType dtype;
  const char* kv;
};

class ImplTest : public ::testing::TestWithParam<std::tuple<DTypePair, KvCacheLayout>> {};

TEST_P(ImplTest, DecodePrefillAndMixedEqualTheReference) {
  const auto& [dtypes, layout] = GetParam();
  LayerCase c = kMixed;
  c.dtype = dtypes.dtype;
  c.kv_cache_dtype = dtypes.kv;
  c.layout = layout;
  TestLayer mixed(c);
  EXPECT_EQ(testkit::run_and_check(mixed, mixed.impl_options()), "");

  c.per_head_scales = true;
  c.q_lens = {1, 1, 1};
  c.kv_lens = {33, 64, 1};
  TestLayer decode(c);
  EXPECT_EQ(testkit::run_and_check(decode, decode.impl_options()), "");

  c.q_lens = {16, 20};
  c.kv_lens = {16, 44};
  TestLayer prefill(c);
  EXPECT_EQ(testkit::run_and_check(prefill, prefill.impl_options()), "");
}

INSTANTIATE_TEST_SUITE_P(
    HpcAttentionImpl, ImplTest,
    ::testing::Combine(
        ::testing::Values(DTypePair{DType::kFloat32, "auto"}, DTypePair{DType::kFloat16, "float16"},
                          DTypePair{DType::kBFloat16, "auto"}, DTypePair{DType::kFloat32, "fp8"},
                          DTypePair{DType::kFloat16, "fp8_e4m3"},
                          DTypePair{DType::kBFloat16, "fp8_e5m2"}),
        ::testing::Values(KvCacheLayout::kNhd, KvCacheLayout::kHnd, KvCacheLayout::kPacked)),
    [](const auto& test) {
      const DTypePair pair = std::get<0>(test.param);
      return std::string(name(pair.dtype)) + "_" + pair.kv + "_" +
             std::string(name(std::get<1>(test.param)));
    });

// What validate() accepts runs and is right, and what it refuses does not run.
TEST(HpcAttentionImplTest, ValidateAgreesWithWhatRuns) {
  testkit::Rng rng(11);
  int accepted = 0;
  constexpr int kRounds = 300;
  for (int round = 0; round < kRounds; ++round) {
    LayerCase c{.q_lens = {1, 6}, .kv_lens = {19, 6}, .seed = std::uint64_t(round)};
    c.head_dim = rng.pick(std::vector<std::int64_t>{64, 80, 96, 128, 72});
    c.page_size = rng.pick(std::vector<std::int64_t>{8, 16, 40, 12});
    c.num_kv_heads = rng.integer(1, 3);
    c.num_q_heads = rng.chance(0.9) ? c.num_kv_heads * rng.integer(1, 4) : c.num_kv_heads + 1;
    c.dtype = rng.pick(std::vector<DType>{DType::kFloat32, DType::kFloat16, DType::kBFloat16});
    const auto names = HpcAttentionBackend::supported_kv_cache_dtypes();
    c.kv_cache_dtype = names[std::size_t(rng.integer(0, std::int64_t(names.size()) - 1))];
    c.layout = rng.pick(std::vector<KvCacheLayout>{KvCacheLayout::kNhd, KvCacheLayout::kHnd,
                                                   KvCacheLayout::kPacked});
    std::optional<std::int64_t> window;
    if (rng.chance(0.5)) window = rng.integer(0, 9);
    const double softcap = rng.pick(std::vector<double>{0.0, 2.0, 30.0, -1.0});

    const BackendRequest request{.num_q_heads = c.num_q_heads,
                                 .num_kv_heads = c.num_kv_heads,
                                 .head_dim = c.head_dim,
                                 .page_size = c.page_size,
                                 .dtype = c.dtype,
                                 .kv_cache_dtype = c.kv_cache_dtype,
                                 .layout = c.layout,
                                 .window = window,
                                 .softcap = softcap};
    const std::vector<std::string> reasons = HpcAttentionBackend::validate(request);
    std::string failure;
    const std::string error = error_of([&] {
      TestLayer layer(c);
      HpcAttentionImplOptions options = layer.impl_options();
      options.sliding_window = window;
      options.logits_soft_cap = softcap;
      failure = testkit::run_and_check(layer, options);
    });
    EXPECT_EQ(failure, "") << "round " << round;
    EXPECT_EQ(reasons.empty(), error == "no error")
        << "round " << round << ": " << error
        << (reasons.empty() ? "" : "; refused: " + reasons[0]);
    accepted += reasons.empty() ? 1 : 0;
  }
  EXPECT_GT(accepted, kRounds / 20);
  EXPECT_LT(accepted, kRounds / 2);
}

TEST(HpcAttentionImplTest, AWindowPastAllLengthsIsNone) {
  for (std::int64_t window : {std::int64_t{1000}, std::int64_t{1} << 40}) {
    TestLayer layer(kMixed);
    HpcAttentionImplOptions options = layer.impl_options();
    options.sliding_window = window;
    EXPECT_EQ(testkit::run_and_check(layer, options), "");
    EXPECT_EQ(layer.check(layer.reference_options(layer.impl_options())), "");
  }
}

TEST(HpcAttentionImplTest, OneCallServesAMixedBatch) {
  TestLayer layer(kMixed);
  reset_counters();
  EXPECT_EQ(testkit::run_and_check(layer, layer.impl_options()), "");
  EXPECT_EQ(counters().at("paged_attention"), 1);
  EXPECT_EQ(counters().at("store_kv"), 1);
}

TEST(HpcAttentionImplTest, Fp8CacheMayComeAsBytes) {
  LayerCase c = kMixed;
  c.kv_cache_dtype = "fp8";
  TestLayer layer(c);
  HpcAttnMetadataBuilder builder(layer.builder_options());
  const HpcAttnMetadata metadata = metadata_of(builder, layer);
  HpcAttentionForwardArgs args = layer.forward_args(metadata);
  args.kv_cache =
      Tensor(args.kv_cache.data(), DType::kUInt8, args.kv_cache.sizes(), args.kv_cache.strides());
  HpcAttentionImpl(layer.impl_options()).forward(args);
  EXPECT_EQ(layer.wrong_slots(), 0);
  EXPECT_EQ(layer.check(layer.reference_options(layer.impl_options())), "");
}

// ---- each argument of the constructor has its effect

TEST(HpcAttentionImplTest, AllOptionsTogether) {
  TestLayer layer(kMixed);
  const GuardedTensor sinks = GuardedTensor::of_floats({0.5, -1.0, 2.0, 0.0}, DType::kBFloat16);
  HpcAttentionImplOptions options = layer.impl_options();
  options.sliding_window = 9;
  options.logits_soft_cap = 1.5;
  options.alibi_slopes = std::vector<float>{0.5F, 0.25F, 0.125F, 0.01F};
  options.sinks = sinks;
  AttentionOptions want = layer.reference_options(options);
  const GuardedTensor slopes = GuardedTensor::of_floats({0.5, 0.25, 0.125, 0.01F});
  want.alibi_slopes = slopes;

  HpcAttnMetadataBuilder builder(layer.builder_options(9));
  const HpcAttnMetadata metadata = metadata_of(builder, layer);
  HpcAttentionImpl(options).forward(layer.forward_args(metadata));
  EXPECT_EQ(layer.check(want), "");

  // Leaving any one out is another result.
  for (int left_out = 0; left_out < 4; ++left_out) {
    AttentionOptions other = want;
    if (left_out == 0) other.window.reset();
    if (left_out == 1) other.softcap = 0.0;
    if (left_out == 2) other.alibi_slopes = {};
    if (left_out == 3) other.sinks = {};
    EXPECT_NE(layer.check(other), "") << left_out;
  }
}

TEST(HpcAttentionImplTest, SoftCapOfZeroIsNone) {
  TestLayer layer(kMixed);
  HpcAttentionImplOptions options = layer.impl_options();
  options.logits_soft_cap = 0.0;
  EXPECT_EQ(testkit::run_and_check(layer, options), "");
}

TEST(HpcAttentionImplTest, ConstructorGivesEveryReason) {
  TestLayer layer(kMixed);
  HpcAttentionImplOptions options = layer.impl_options();
  options.head_size = 60;
  options.kv_cache_dtype = "int4";
  options.sliding_window = 0;
  options.scale = std::nan("");
  EXPECT_EQ(
      error_of([&] { HpcAttentionImpl impl(options); }),
      "HpcAttentionImpl: head_dim is 60, expected 64, 80, 96, 128, 192 or 256; kv_cache_dtype is "
      "'int4', expected auto, float32, float16, bfloat16, fp8, fp8_e4m3 or fp8_e5m2; scale is nan, "
      "expected a finite number; window is 0, expected 1 or more tokens (its own included).");
  EXPECT_THROW(HpcAttentionImpl impl(options), Unsupported);
  options = layer.impl_options();
  options.alibi_slopes = std::vector<float>{1.0F};
  EXPECT_EQ(error_of([&] { HpcAttentionImpl impl(options); }),
            "HpcAttentionImpl: alibi_slopes has 1 entries, expected 4 (num_heads).");
  options = layer.impl_options();
  const GuardedTensor sinks = GuardedTensor::of_floats({0.5});
  options.sinks = sinks;
  EXPECT_NE(error_of([&] { HpcAttentionImpl impl(options); }).find("sinks is float32[1]"),
            std::string::npos);
}

// ---- who writes KV

TEST(HpcAttentionImplTest, ALayerThatSharesKvWritesNone) {
  TestLayer layer({.q_lens = {2}, .kv_lens = {20}});
  HpcAttnMetadataBuilder builder(layer.builder_options());
  const HpcAttnMetadata metadata = metadata_of(builder, layer);
  HpcAttentionImplOptions options = layer.impl_options();
  HpcAttentionImpl(options).forward(layer.forward_args(metadata));  // the target writes
  const auto pool = layer.pool_bytes();

  options.kv_sharing_target_layer_name = "layer";
  HpcAttentionForwardArgs args = layer.forward_args(metadata);
  const GuardedTensor other_key = layer.random({2, 2, 64});
  args.key = other_key;
  args.value = other_key;
  layer.reset_output();
  HpcAttentionImpl(options).forward(args);
  EXPECT_EQ(layer.pool_bytes(), pool);
  EXPECT_EQ(layer.check(layer.reference_options(options)), "");
  args.key = args.value = {};
  layer.reset_output();
  HpcAttentionImpl(options).forward(args);
  EXPECT_EQ(layer.check(layer.reference_options(options)), "");
}

TEST(HpcAttentionImplTest, AProloguesResultIsUsedAndTaken) {
  TestLayer layer({.q_lens = {2}, .kv_lens = {20}});
  HpcAttnMetadataBuilder builder(layer.builder_options());
  StepWorkspace workspace;
  HpcAttnMetadata metadata = builder.build(0, layer.common(workspace.begin_step()));
  const HpcAttentionImpl impl(layer.impl_options());
  HpcAttentionForwardArgs args = layer.forward_args(metadata);
  args.workspace = &workspace;
  impl.forward(args);  // no prologue: writes
  EXPECT_EQ(layer.wrong_slots(), 0);

  metadata = builder.build(0, layer.common(workspace.begin_step()));
  workspace.put("layer", metadata.step,
                {.kv_written = true,
                 .num_tokens = 2,
                 .query = args.query.data(),
                 .kv_cache = args.kv_cache.data()});
  const auto pool = layer.pool_bytes();
  const GuardedTensor unrotated = layer.random({2, 2, 64});
  args.key = unrotated;
  args.value = unrotated;
  layer.reset_output();
  impl.forward(args);
  EXPECT_EQ(layer.pool_bytes(), pool);
  EXPECT_EQ(layer.check(layer.reference_options(layer.impl_options())), "");
  EXPECT_FALSE(workspace.peek("layer", metadata.step));
}

// A prologue that only rotates: K and V are the attention's to store.
TEST(HpcAttentionImplTest, APrologueThatStoredNothingLeavesTheWriteToTheAttention) {
  TestLayer layer({.q_lens = {2}, .kv_lens = {20}});
  HpcAttnMetadataBuilder builder(layer.builder_options());
  StepWorkspace workspace;
  const HpcAttnMetadata metadata = builder.build(0, layer.common(workspace.begin_step()));
  workspace.put("layer", metadata.step, {.num_tokens = 2, .query = layer.query().data()});
  HpcAttentionForwardArgs args = layer.forward_args(metadata);
  args.workspace = &workspace;
  HpcAttentionImpl(layer.impl_options()).forward(args);
  EXPECT_EQ(layer.wrong_slots(), 0);
  EXPECT_EQ(layer.check(layer.reference_options(layer.impl_options())), "");
}

TEST(HpcAttentionImplTest, AResultMadeForSomethingElseIsRefused) {
  TestLayer layer({.q_lens = {2}, .kv_lens = {20}});
  HpcAttnMetadataBuilder builder(layer.builder_options());
  const auto error_with = [&](const PrologueResult& result) {
    StepWorkspace workspace;
    const HpcAttnMetadata metadata = builder.build(0, layer.common(workspace.begin_step()));
    workspace.put("layer", metadata.step, result);
    HpcAttentionForwardArgs args = layer.forward_args(metadata);
    args.workspace = &workspace;
    return error_of([&] { HpcAttentionImpl(layer.impl_options()).forward(args); });
  };
  const void* query = layer.query().data();
  float other = 0.0F;
  EXPECT_NE(error_with({.kv_written = true, .num_tokens = 2, .query = query, .kv_cache = &other})
                .find("wrote another cache than kv_cache"),
            std::string::npos);
  EXPECT_NE(error_with({.num_tokens = 2, .query = &other}).find("in other memory"),
            std::string::npos);
  EXPECT_NE(error_with({.num_tokens = 7, .query = query}).find("made a query of 7 tokens"),
            std::string::npos);
}

TEST(HpcAttentionImplTest, MetadataOfAnotherStepIsRefused) {
  TestLayer layer({.q_lens = {2}, .kv_lens = {20}});
  HpcAttnMetadataBuilder builder(layer.builder_options());
  StepWorkspace workspace;
  const HpcAttnMetadata metadata = builder.build(0, layer.common(workspace.begin_step()));
  workspace.begin_step();
  HpcAttentionForwardArgs args = layer.forward_args(metadata);
  args.workspace = &workspace;
  EXPECT_NE(error_of([&] {
              HpcAttentionImpl(layer.impl_options()).forward(args);
            }).find("for step 1, and the workspace is at step 2"),
            std::string::npos);
}

// ---- profiling, padding, fused output

TEST(HpcAttentionImplTest, AProfilingRunGivesZeros) {
  TestLayer layer(kMixed);
  const HpcAttentionImpl impl(layer.impl_options());
  HpcAttnMetadataBuilder builder(layer.builder_options());
  const HpcAttnMetadata metadata = metadata_of(builder, layer);
  for (bool no_metadata : {true, false}) {
    layer.reset_output();
    HpcAttentionForwardArgs args = layer.forward_args(metadata);
    if (no_metadata) args.metadata = nullptr;
    if (!no_metadata) args.kv_cache = Tensor::contiguous(nullptr, DType::kFloat32, {0});
    impl.forward(args);
    EXPECT_EQ(bits_set(layer.output().bytes()), 0);
    EXPECT_EQ(layer.lse().data_as<float>()[0], -std::numeric_limits<float>::infinity());
  }
  EXPECT_GT(layer.wrong_slots(), 0);
}

TEST(HpcAttentionImplTest, PaddingRowsBecomeZero) {
  TestLayer layer(kMixed);
  ASSERT_EQ(testkit::run_and_check(layer, layer.impl_options()), "");
  const Tensor rows = layer.output().tensor().slice(0, layer.num_live(), 3);
  for (std::int64_t i = 0; i < 3 * 4 * 64; ++i) ASSERT_EQ(rows.data_as<float>()[i], 0.0F) << i;
}

TEST(HpcAttentionImplTest, FusedFp8Output) {
  for (const char* kv : {"auto", "fp8"}) {
    LayerCase c = kMixed;
    c.dtype = DType::kBFloat16;
    c.kv_cache_dtype = kv;
    TestLayer layer(c);
    HpcAttnMetadataBuilder builder(layer.builder_options());
    const HpcAttnMetadata metadata = metadata_of(builder, layer);
    HpcAttentionForwardArgs args = layer.forward_args(metadata);
    const HpcAttentionImpl impl(layer.impl_options());
    impl.forward(args);  // in bfloat16

    const GuardedTensor fp8(DType::kFloat8E4M3, {layer.num_live() + 3, 4, 64});
    const GuardedTensor scale = GuardedTensor::of_floats({0.02});
    args.output = fp8;
    args.output_scale = scale;
    impl.forward(args);
    AttentionOptions options = layer.reference_options(layer.impl_options());
    options.out_scale = scale;
    const KvCacheViews views = layer.views();
    const auto want = reference::attention(PagedAttentionArgs{.q = args.query,
                                                              .k_cache = views.k,
                                                              .v_cache = views.v,
                                                              .page_table = metadata.page_table,
                                                              .cu_seqlens_q = metadata.cu_seqlens_q,
                                                              .kv_lens = metadata.kv_lens,
                                                              .out = fp8,
                                                              .options = options});
    EXPECT_EQ(testkit::check_outputs(fp8, {}, options, want, kv), "");
  }
}

}  // namespace
}  // namespace hpcattn
