// SPDX-License-Identifier: Apache-2.0
#include "hpcattn/backend/metadata_builder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "hpcattn/error.h"
#include "src/backend/test_layer.h"

namespace hpcattn {
namespace {

using testkit::error_of;
using testkit::LayerCase;
using testkit::TestLayer;

std::vector<std::int32_t> ints_of(const Tensor& tensor) {
  const auto* data = tensor.data_as<const std::int32_t>();
  return {data, data + tensor.size(0)};
}

// ---- decodes_first

TEST(DecodesFirstTest, KeepsABatchThatIsInOrder) {
  const std::vector<std::int64_t> lens{1, 1, 3, 1, 700};
  const BatchOrder order = decodes_first(lens, 3);
  EXPECT_EQ(order.num_decodes, 4);
  EXPECT_TRUE(order.swaps.empty());
  EXPECT_EQ(order.order, (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
}

TEST(DecodesFirstTest, MovesEachPrefillBehindByOneSwap) {
  const std::vector<std::int64_t> lens{50, 1, 60, 1, 1};
  const BatchOrder order = decodes_first(lens, 1);
  EXPECT_EQ(order.num_decodes, 3);
  EXPECT_EQ(order.swaps, (std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 3}, {2, 4}}));
  EXPECT_EQ(order.order, (std::vector<std::int64_t>{3, 1, 4, 0, 2}));
}

TEST(DecodesFirstTest, RandomBatchesComeOutInOrderByTheFewestSwaps) {
  testkit::Rng rng(7);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::int64_t> lens(std::size_t(rng.integer(0, 12)));
    for (std::int64_t& len : lens) len = rng.integer(0, 6);
    const std::int64_t threshold = rng.integer(1, 5);
    const BatchOrder order = decodes_first(lens, threshold);

    std::vector<std::int64_t> moved = lens;
    std::int64_t misplaced = 0;
    for (std::int64_t i = 0; i < order.num_decodes; ++i) {
      if (lens[std::size_t(i)] > threshold) ++misplaced;
    }
    EXPECT_EQ(std::int64_t(order.swaps.size()), misplaced);
    for (const auto& [a, b] : order.swaps) std::swap(moved[std::size_t(a)], moved[std::size_t(b)]);
    for (std::size_t i = 0; i < moved.size(); ++i) {
      EXPECT_EQ(moved[i], lens[std::size_t(order.order[i])]);
      EXPECT_EQ(moved[i] <= threshold, std::int64_t(i) < order.num_decodes);
    }
  }
}

TEST(DecodesFirstTest, Refusals) {
  const std::vector<std::int64_t> negative{1, -2};
  EXPECT_NE(error_of([&] { decodes_first(negative, 1); }).find("query_lens[1] is -2"),
            std::string::npos);
  EXPECT_NE(error_of([&] { decodes_first({}, 0); }).find("threshold is 0"), std::string::npos);
}

// ---- build

TEST(HpcAttnMetadataBuilderTest, SplitsDecodesAndPrefills) {
  TestLayer layer({.q_lens = {1, 1, 40, 7}, .kv_lens = {90, 3, 40, 100}, .padding = 5});
  HpcAttnMetadataBuilder builder(layer.builder_options());
  EXPECT_EQ(builder.decode_threshold(), 1);
  const HpcAttnMetadata m = builder.build(0, layer.common(/*step=*/9));
  EXPECT_EQ(m.step, 9U);
  EXPECT_EQ(m.num_actual_tokens, 54);
  EXPECT_EQ(m.num_requests(), 4);
  EXPECT_EQ(m.num_decodes, 2);
  EXPECT_EQ(m.num_decode_tokens, 2);
  EXPECT_EQ(m.num_prefills, 2);
  EXPECT_EQ(m.num_prefill_tokens, 47);
  EXPECT_EQ(m.max_query_len, 40);
  EXPECT_EQ(m.max_kv_len, 100);
  EXPECT_EQ(m.decode_query_len, 1);
  EXPECT_TRUE(m.causal);
  EXPECT_EQ(ints_of(m.cu_seqlens_decode), (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(ints_of(m.cu_seqlens_prefill), (std::vector<std::int32_t>{0, 40, 47}));
  EXPECT_EQ(m.kv_lens.data(), layer.common().kv_lens.data());
  EXPECT_EQ(m.page_table.data(), layer.common().page_table.data());
  const PlanSummary plan = summarize(m.plan);
  EXPECT_EQ(plan.num_requests, 4);
  EXPECT_EQ(plan.group, layer.group());
}

TEST(HpcAttnMetadataBuilderTest, AllDecodesOrAllPrefills) {
  TestLayer decodes({.q_lens = {1, 1}, .kv_lens = {9, 3}});
  HpcAttnMetadataBuilder builder(decodes.builder_options());
  const HpcAttnMetadata d = builder.build(0, decodes.common());
  EXPECT_EQ(d.num_prefills, 0);
  EXPECT_FALSE(d.cu_seqlens_prefill.defined());
  TestLayer prefills({.q_lens = {9, 3}, .kv_lens = {9, 3}});
  HpcAttnMetadataBuilder other(prefills.builder_options());
  const HpcAttnMetadata p = other.build(0, prefills.common());
  EXPECT_EQ(p.num_decodes, 0);
  EXPECT_EQ(p.decode_query_len, 0);
  EXPECT_FALSE(p.cu_seqlens_decode.defined());
}

TEST(HpcAttnMetadataBuilderTest, SpeculativeTokensRaiseTheThreshold) {
  TestLayer layer({.q_lens = {8, 8, 9}, .kv_lens = {30, 31, 9}});
  HpcAttnMetadataBuilderOptions options = layer.builder_options();
  options.num_speculative_tokens = 7;
  HpcAttnMetadataBuilder builder(options);
  EXPECT_EQ(builder.decode_threshold(), 8);
  const HpcAttnMetadata m = builder.build(0, layer.common());
  EXPECT_EQ(m.num_decodes, 2);
  EXPECT_EQ(m.decode_query_len, 8);
  EXPECT_EQ(m.num_prefills, 1);
}

TEST(HpcAttnMetadataBuilderTest, RaggedDecodesAreDecodesWithoutACommonLength) {
  TestLayer layer({.q_lens = {4, 1, 3, 0}, .kv_lens = {30, 31, 9, 0}});
  HpcAttnMetadataBuilderOptions options = layer.builder_options();
  options.num_speculative_tokens = 3;
  HpcAttnMetadataBuilder builder(options);
  const HpcAttnMetadata m = builder.build(0, layer.common());
  EXPECT_EQ(m.num_decodes, 4);
  EXPECT_EQ(m.decode_query_len, 0);
}

TEST(HpcAttnMetadataBuilderTest, PaddingRequestsDoNotMakeDecodesRagged) {
  TestLayer layer({.q_lens = {2, 2, 0}, .kv_lens = {30, 31, 0}});
  HpcAttnMetadataBuilderOptions options = layer.builder_options();
  options.reorder_batch_threshold = 2;
  HpcAttnMetadataBuilder builder(options);
  const HpcAttnMetadata m = builder.build(0, layer.common());
  EXPECT_EQ(m.num_decodes, 3);
  EXPECT_EQ(m.decode_query_len, 2);
}

// A last chunk of one token counts as a decode by its length; a short one behind a long one counts
// as a prefill. Served is the same either way.
TEST(HpcAttnMetadataBuilderTest, ShortPrefillsAreServedOnBothSidesOfTheLine) {
  TestLayer layer({.q_lens = {1, 1, 30, 1, 2}, .kv_lens = {1, 65, 30, 33, 2}});
  HpcAttnMetadataBuilder builder(layer.builder_options());
  const HpcAttnMetadata m = builder.build(0, layer.common());
  EXPECT_EQ(m.num_decodes, 2);
  EXPECT_EQ(m.num_prefills, 3);
  EXPECT_EQ(testkit::run_and_check(layer, layer.impl_options()), "");
}

TEST(HpcAttnMetadataBuilderTest, EmptyStep) {
  TestLayer layer({.q_lens = {}, .kv_lens = {}, .padding = 3});
  EXPECT_EQ(testkit::run_and_check(layer, layer.impl_options()), "");
  HpcAttnMetadataBuilder builder(layer.builder_options());
  const HpcAttnMetadata m = builder.build(0, layer.common());
  EXPECT_EQ(m.num_requests(), 0);
  EXPECT_EQ(m.max_query_len, 0);
}

TEST(HpcAttnMetadataBuilderTest, FastBuildAndDraftingLeaveThePlanToTheCall) {
  TestLayer layer({.q_lens = {1, 20}, .kv_lens = {90, 20}});
  HpcAttnMetadataBuilder builder(layer.builder_options());
  for (const HpcAttnMetadata& m : {builder.build(0, layer.common(), /*fast_build=*/true),
                                   builder.build_for_drafting(layer.common())}) {
    EXPECT_FALSE(m.plan.defined());
    layer.reset_output();
    HpcAttentionImpl(layer.impl_options()).forward(layer.forward_args(m));
    EXPECT_EQ(layer.check(layer.reference_options(layer.impl_options())), "");
  }
}

TEST(HpcAttnMetadataBuilderTest, CascadeIsRefusedWithItsReason) {
  TestLayer layer({.q_lens = {1}, .kv_lens = {90}});
  HpcAttnMetadataBuilder builder(layer.builder_options());
  const CascadeAnswer answer = HpcAttnMetadataBuilder::use_cascade_attention();
  EXPECT_FALSE(answer.use);
  EXPECT_EQ(error_of([&] { builder.build(16, layer.common()); }),
            "HpcAttnMetadataBuilder: common_prefix_len is 16, expected 0: " + answer.reason + ".");
}

// Requests that do share a prefix read it through their own tables, and get what they would alone.
TEST(HpcAttnMetadataBuilderTest, SharedPrefixPagesAreServedWithoutACascade) {
  TestLayer layer({.q_lens = {2, 3}, .kv_lens = {50, 52}});
  auto* table = layer.page_table().data_as<std::int32_t>();
  const std::int64_t row = layer.page_table().size(1);
  for (std::int64_t page = 0; page < 2; ++page) table[row + page] = table[page];  // 32 tokens
  EXPECT_EQ(testkit::run_and_check(layer, layer.impl_options()), "");
}

TEST(HpcAttnMetadataBuilderTest, UpdatePageTableKeepsTheStepAndItsPlan) {
  const LayerCase c{.q_lens = {1, 20}, .kv_lens = {90, 20}};
  TestLayer first(c);
  LayerCase other_case = c;
  other_case.seed = 2;
  TestLayer second(other_case);  // of the same lengths, with pages of its own
  HpcAttnMetadataBuilder builder(first.builder_options());
  const HpcAttnMetadata m = builder.build(0, first.common());
  const HpcAttnMetadata n = HpcAttnMetadataBuilder::update_page_table(m, second.page_table(),
                                                                      second.common().slot_mapping);
  EXPECT_EQ(n.plan.data(), m.plan.data());
  HpcAttentionImpl(second.impl_options()).forward(second.forward_args(n));
  EXPECT_EQ(second.wrong_slots(), 0);
  EXPECT_EQ(second.check(second.reference_options(second.impl_options())), "");
  EXPECT_THROW(HpcAttnMetadataBuilder::update_page_table(m, first.page_table().slice(0, 0, 1),
                                                         m.slot_mapping),
               InvalidArgument);
  EXPECT_THROW(
      HpcAttnMetadataBuilder::update_page_table(m, m.page_table, m.slot_mapping.slice(0, 0, 2)),
      InvalidArgument);
}

TEST(HpcAttnMetadataBuilderTest, NotCausalStep) {
  TestLayer layer({.q_lens = {3, 20}, .kv_lens = {40, 20}});
  HpcAttnMetadataBuilder builder(layer.builder_options());
  CommonAttnMetadata common = layer.common();
  common.causal = false;
  const HpcAttnMetadata m = builder.build(0, common);
  EXPECT_FALSE(m.causal);
  HpcAttentionImpl(layer.impl_options()).forward(layer.forward_args(m));
  AttentionOptions options = layer.reference_options(layer.impl_options());
  options.causal = false;
  EXPECT_EQ(layer.check(options), "");
}

// A request's bits are the same alone and in company, by a fixed split.
TEST(HpcAttnMetadataBuilderTest, FixedSplitMakesBitsIndependentOfTheBatch) {
  LayerCase c{.q_lens = {1}, .kv_lens = {3000}};
  TestLayer alone(c);
  c.q_lens = {1, 1, 200, 1};
  c.kv_lens = {3000, 3000, 200, 40};
  TestLayer company(c);
  // The same query and KV for the first request.
  const KvCacheViews from = alone.views();
  const KvCacheViews to = company.views();
  const std::int64_t pages = alone.page_table().size(1);
  for (std::int64_t page = 0; page < pages; ++page) {
    const std::int64_t a = alone.page_table().data_as<std::int32_t>()[page];
    const std::int64_t b = company.page_table().data_as<std::int32_t>()[page];
    const auto bytes = std::size_t(16 * 2 * 64 * 4);
    std::memcpy(to.k.select(0, b).data(), from.k.select(0, a).data(), bytes);
    std::memcpy(to.v.select(0, b).data(), from.v.select(0, a).data(), bytes);
  }
  for (auto tensor : {&TestLayer::query, &TestLayer::key, &TestLayer::value}) {
    const Tensor& source = (alone.*tensor)();
    std::memcpy((company.*tensor)().data(), source.data(), std::size_t(source.num_elements()) * 4);
  }
  for (TestLayer* layer : {&alone, &company}) {
    HpcAttnMetadataBuilderOptions options = layer->builder_options();
    options.fixed_split = 256;
    HpcAttnMetadataBuilder builder(options);
    const HpcAttnMetadata m = builder.build(0, layer->common());
    EXPECT_GT(summarize(m.plan).num_combines, 0);
    HpcAttentionImpl(layer->impl_options()).forward(layer->forward_args(m));
  }
  EXPECT_EQ(
      std::memcmp(alone.output().tensor().data(), company.output().tensor().data(), 4 * 64 * 4), 0);
}

// ---- refusals

TEST(HpcAttnMetadataBuilderTest, ConstructorGivesEveryReason) {
  TestLayer layer({.q_lens = {1}, .kv_lens = {9}});
  HpcAttnMetadataBuilderOptions options = layer.builder_options();
  options.group.head_dim = 72;
  options.group.page_size = 12;
  options.num_speculative_tokens = -1;
  EXPECT_EQ(
      error_of([&] { HpcAttnMetadataBuilder builder(options); }),
      "HpcAttnMetadataBuilder: head_dim is 72, expected 64, 80, 96, 128, 192 or 256; page_size is "
      "12, expected a multiple of 8; num_speculative_tokens is -1, expected 0 or more.");
  options = layer.builder_options();
  options.max_num_requests = 0;
  EXPECT_NE(error_of([&] { HpcAttnMetadataBuilder builder(options); }).find("max_num_requests 0"),
            std::string::npos);
  options = layer.builder_options();
  options.reorder_batch_threshold = 0;
  EXPECT_NE(error_of([&] {
              HpcAttnMetadataBuilder builder(options);
            }).find("reorder_batch_threshold is 0"),
            std::string::npos);
  options = layer.builder_options();
  options.attention_type = AttentionType::kEncoderOnly;
  EXPECT_NE(error_of([&] { HpcAttnMetadataBuilder builder(options); }).find("page_size 16"),
            std::string::npos);
}

TEST(HpcAttnMetadataBuilderTest, BadStepsAreRefused) {
  TestLayer layer({.q_lens = {1, 20}, .kv_lens = {90, 20}});
  HpcAttnMetadataBuilder builder(layer.builder_options());
  const auto error_with = [&](auto change) {
    CommonAttnMetadata common = layer.common();
    change(common);
    return error_of([&] { builder.build(0, common); });
  };
  const auto has = [&](const std::string& error, const char* part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  has(error_with([](auto& c) { c.num_requests = 99; }),
      "num_requests is 99, expected 0 to the capacity");
  has(error_with([](auto& c) { c.num_requests = -1; }), "num_requests is -1");
  has(error_with([](auto& c) { c.num_actual_tokens = 1000; }), "num_actual_tokens is 1000");
  has(error_with([](auto& c) { c.num_actual_tokens = 20; }), "cu_seqlens_q ends at 21");
  has(error_with([](auto& c) { c.cu_seqlens_q = {}; }), "cu_seqlens_q is not given");
  has(error_with([](auto& c) { c.kv_lens = c.kv_lens.slice(0, 0, 1); }), "kv_lens is int32[1]");
  has(error_with([](auto& c) { c.page_table = {}; }), "page_table is not given");
  has(error_with([](auto& c) { c.slot_mapping = c.slot_mapping.slice(0, 0, 20); }),
      "slot_mapping is int64[20]");
  std::vector<std::int32_t> lens{90, 97};
  has(error_with([&](auto& c) { c.kv_lens = Tensor::contiguous(lens.data(), DType::kInt32, {2}); }),
      "kv_lens[1] is 97, expected 0 to the capacity of 96");
  lens[1] = -4;
  has(error_with([&](auto& c) { c.kv_lens = Tensor::contiguous(lens.data(), DType::kInt32, {2}); }),
      "kv_lens[1] is -4");
  std::vector<std::int32_t> falling{0, 20, 1};
  has(error_with([&](auto& c) {
        c.cu_seqlens_q = Tensor::contiguous(falling.data(), DType::kInt32, {3});
      }),
      "do not fall");
}

}  // namespace
}  // namespace hpcattn
