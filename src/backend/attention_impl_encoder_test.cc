// SPDX-License-Identifier: Apache-2.0
// HpcAttentionImpl without a cache, and over an encoder's.
#include <gtest/gtest.h>

#include "hpcattn/backend/attention_impl.h"
#include "src/backend/test_layer.h"

namespace hpcattn {
namespace {

using testkit::error_of;
using testkit::GuardedTensor;
using testkit::TestLayer;

TEST(HpcAttentionImplTest, EncoderAttentionSeesBothWaysWithoutACache) {
  for (std::optional<std::int64_t> window :
       {std::optional<std::int64_t>{}, std::optional<std::int64_t>{4}}) {
    TestLayer layer({.q_lens = {30, 1, 9}, .kv_lens = {30, 1, 9}, .padding = 2});
    HpcAttnMetadataBuilderOptions builder_options = layer.builder_options(window);
    builder_options.group.page_size = 0;
    builder_options.attention_type = AttentionType::kEncoderOnly;
    HpcAttnMetadataBuilder builder(builder_options);
    CommonAttnMetadata common = layer.common();
    common.page_table = common.slot_mapping = {};
    const HpcAttnMetadata metadata = builder.build(0, common);
    EXPECT_FALSE(metadata.causal);

    HpcAttentionImplOptions options = layer.impl_options();
    options.attention_type = AttentionType::kEncoderOnly;
    options.sliding_window = window;
    const HpcAttentionImpl impl(options);
    HpcAttentionForwardArgs args = layer.forward_args(metadata);
    args.kv_cache = {};
    impl.forward(args);
    AttentionOptions want = layer.reference_options(options);
    want.causal = false;
    const auto result =
        reference::attention(PackedAttentionArgs{.q = args.query,
                                                 .k = args.key,
                                                 .v = args.value,
                                                 .cu_seqlens_q = metadata.cu_seqlens_q,
                                                 .cu_seqlens_k = metadata.cu_seqlens_q,
                                                 .out = args.output,
                                                 .options = want});
    EXPECT_EQ(testkit::check_outputs(args.output, args.lse, want, result, "encoder"), "");
    args.key = args.value = {};
    EXPECT_NE(error_of([&] { impl.forward(args); }).find("key is not given"), std::string::npos);
  }
}

TEST(HpcAttentionImplTest, EncoderStepsHaveNoOtherTokens) {
  TestLayer layer({.q_lens = {3}, .kv_lens = {9}});
  HpcAttnMetadataBuilderOptions options = layer.builder_options();
  options.group.page_size = 0;
  options.attention_type = AttentionType::kEncoder;
  HpcAttnMetadataBuilder builder(options);
  EXPECT_NE(error_of([&] {
              builder.build(0, layer.common());
            }).find("kv_lens[0] is 9, expected the request's 3 tokens"),
            std::string::npos);
}

// A decoder's tokens over the encoder's KV: the encoder's tokens are more than, or fewer than, the
// decoder's; they are stored by the first step and read by the others.
TEST(HpcAttentionImplTest, CrossAttentionReadsTheEncodersPages) {
  TestLayer encoder({.q_lens = {40, 3}, .kv_lens = {40, 3}});  // gives K, V and slots
  const GuardedTensor cu = GuardedTensor::of_ints(std::vector<std::int32_t>{0, 2, 10});
  HpcAttnMetadataBuilderOptions builder_options = encoder.builder_options();
  builder_options.attention_type = AttentionType::kEncoderDecoder;
  HpcAttnMetadataBuilder builder(builder_options);
  CommonAttnMetadata common = encoder.common();
  common.num_actual_tokens = 10;
  common.cu_seqlens_q = cu;
  HpcAttentionImplOptions options = encoder.impl_options();
  options.attention_type = AttentionType::kEncoderDecoder;
  const HpcAttentionImpl impl(options);
  AttentionOptions want = encoder.reference_options(options);
  want.causal = false;

  for (bool first_step : {true, false}) {
    if (!first_step) common.slot_mapping = {};
    HpcAttnMetadata metadata = builder.build(0, common);
    EXPECT_FALSE(metadata.causal);
    if (!first_step) {  // metadata made by hand for a causal step: there is no mask all the same
      metadata.causal = true;
      metadata.plan = {};
    }
    const GuardedTensor query = encoder.random({10, 4, 64});
    const GuardedTensor output(DType::kFloat32, {10, 4, 64});
    HpcAttentionForwardArgs args = encoder.forward_args(metadata);
    args.query = query;
    args.output = output;
    args.lse = {};
    if (!first_step) args.key = args.value = {};
    impl.forward(args);
    EXPECT_EQ(encoder.wrong_slots(), 0);
    const KvCacheViews views = encoder.views();
    const auto result = reference::attention(PagedAttentionArgs{.q = query,
                                                                .k_cache = views.k,
                                                                .v_cache = views.v,
                                                                .page_table = metadata.page_table,
                                                                .cu_seqlens_q = cu,
                                                                .kv_lens = metadata.kv_lens,
                                                                .out = output,
                                                                .options = want});
    EXPECT_EQ(testkit::check_outputs(output, {}, want, result, "cross"), "");
  }
}

}  // namespace
}  // namespace hpcattn
