// SPDX-License-Identifier: Apache-2.0
// Metadata of a captured graph, updated in place: a replay is the same call over the same
// addresses.
#include <gtest/gtest.h>

#include "hpcattn/backend/metadata_builder.h"
#include "hpcattn/error.h"
#include "src/backend/test_layer.h"

namespace hpcattn {
namespace {

using testkit::LayerCase;
using testkit::TestLayer;

struct Addresses {
  explicit Addresses(const HpcAttnMetadata& m)
      : tensors{m.cu_seqlens_q.data(), m.kv_lens.data(), m.page_table.data(), m.slot_mapping.data(),
                m.plan.data()},
        shapes{to_string(m.cu_seqlens_q), to_string(m.kv_lens), to_string(m.page_table),
               to_string(m.slot_mapping), to_string(m.plan)} {}
  bool operator==(const Addresses&) const = default;
  std::vector<void*> tensors;
  std::vector<std::string> shapes;
};

/// A step of the captured size or below, over the tensors of `layer`, by the metadata of a graph.
std::string replay(TestLayer& layer, const HpcAttnMetadata& metadata) {
  HpcAttentionForwardArgs args = layer.forward_args(metadata);
  layer.reset_output();
  HpcAttentionImpl(layer.impl_options()).forward(args);
  if (layer.wrong_slots() != 0) return "KV of new tokens is not in the cache";
  return layer.check(layer.reference_options(layer.impl_options()));
}

HpcAttnMetadataBuilderOptions options_for(const TestLayer& layer) {
  HpcAttnMetadataBuilderOptions options = layer.builder_options();
  options.max_num_requests = 8;
  options.max_num_tokens = 64;
  options.max_model_len = 512;
  return options;
}

TEST(GraphMetadataTest, ReplaysFollowNewLengthsAtTheSameAddresses) {
  TestLayer captured({.q_lens = {1, 1, 1, 1}, .kv_lens = {5, 5, 5, 5}});
  HpcAttnMetadataBuilder builder(options_for(captured));
  HpcAttnMetadata metadata = builder.build_for_graph_capture(captured.common());
  EXPECT_EQ(replay(captured, metadata), "");
  const Addresses before(metadata);

  const std::vector<LayerCase> steps{
      {.q_lens = {1, 1, 1, 1}, .kv_lens = {500, 1, 33, 64}, .seed = 2},
      {.q_lens = {1, 1}, .kv_lens = {7, 300}, .padding = 2, .seed = 3},  // fewer requests
      {.q_lens = {1, 3}, .kv_lens = {90, 3}, .seed = 4},                 // a prefill among decodes
      {.q_lens = {4}, .kv_lens = {260}, .seed = 5},
      {.q_lens = {}, .kv_lens = {}, .padding = 4, .seed = 6},
      {.q_lens = {1, 1, 1, 1}, .kv_lens = {5, 5, 5, 5}, .seed = 7},
  };
  for (const LayerCase& c : steps) {
    TestLayer step(c);
    builder.update_in_place(metadata, step.common(c.seed));
    EXPECT_EQ(Addresses(metadata), before);
    EXPECT_EQ(metadata.step, c.seed);
    EXPECT_EQ(metadata.num_requests(), 4);
    EXPECT_EQ(metadata.num_actual_tokens, 4);
    EXPECT_EQ(replay(step, metadata), "") << "step " << c.seed;
  }
}

// Nothing of a larger step is left for the rows, requests and pages of a smaller one to find.
TEST(GraphMetadataTest, WhatAStepLeavesFreeIsPadding) {
  TestLayer captured({.q_lens = {1, 1, 2}, .kv_lens = {40, 50, 60}});
  HpcAttnMetadataBuilder builder(options_for(captured));
  HpcAttnMetadata metadata = builder.build_for_graph_capture(captured.common());
  TestLayer step({.q_lens = {1}, .kv_lens = {20}});
  builder.update_in_place(metadata, step.common());
  const auto* cu = metadata.cu_seqlens_q.data_as<const std::int32_t>();
  EXPECT_EQ((std::vector<std::int32_t>(cu, cu + 4)), (std::vector<std::int32_t>{0, 1, 1, 1}));
  const auto* lens = metadata.kv_lens.data_as<const std::int32_t>();
  EXPECT_EQ((std::vector<std::int32_t>(lens, lens + 3)), (std::vector<std::int32_t>{20, 0, 0}));
  const auto* slots = metadata.slot_mapping.data_as<const std::int64_t>();
  EXPECT_EQ((std::vector<std::int64_t>(slots, slots + 4)),
            (std::vector<std::int64_t>{step.slot(0), -1, -1, -1}));
  const auto* pages = metadata.page_table.data_as<const std::int32_t>();
  const std::int64_t columns = metadata.page_table.size(1);
  EXPECT_EQ(columns, 32);
  for (std::int64_t i = 0; i < 3 * columns; ++i) {
    EXPECT_EQ(pages[i], i < 2 ? step.page_table().data_as<const std::int32_t>()[i] : -1) << i;
  }
}

TEST(GraphMetadataTest, PlanIsThatOfAFreshBuild) {
  TestLayer captured({.q_lens = {1, 1}, .kv_lens = {5, 5}});
  HpcAttnMetadataBuilder builder(options_for(captured));
  HpcAttnMetadata metadata = builder.build_for_graph_capture(captured.common());
  TestLayer step({.q_lens = {1, 1}, .kv_lens = {512, 3}});
  builder.update_in_place(metadata, step.common());
  const PlanSummary updated = summarize(metadata.plan);
  const PlanSummary fresh = summarize(builder.build(0, step.common()).plan);
  EXPECT_EQ(updated.num_tasks, fresh.num_tasks);
  EXPECT_EQ(updated.num_partials, fresh.num_partials);
  EXPECT_EQ(updated.total_work, fresh.total_work);
}

TEST(GraphMetadataTest, SeveralGraphsKeepTheirOwnMemory) {
  TestLayer small({.q_lens = {1}, .kv_lens = {70}});
  TestLayer large({.q_lens = {1, 1, 1}, .kv_lens = {70, 71, 72}});
  HpcAttnMetadataBuilder builder(options_for(large));
  const HpcAttnMetadata first = builder.build_for_graph_capture(small.common());
  const HpcAttnMetadata second = builder.build_for_graph_capture(large.common());
  builder.build(0, large.common());  // a step without a graph in between
  EXPECT_EQ(replay(small, first), "");
  EXPECT_EQ(replay(large, second), "");
  EXPECT_EQ(replay(small, first), "");
}

TEST(GraphMetadataTest, AStepOverTheCapturedSizeIsRefusedAndChangesNothing) {
  TestLayer captured({.q_lens = {1, 2}, .kv_lens = {50, 60}});
  HpcAttnMetadataBuilder builder(options_for(captured));
  HpcAttnMetadata metadata = builder.build_for_graph_capture(captured.common());
  const auto error_of = [&](const CommonAttnMetadata& common) -> std::string {
    try {
      builder.update_in_place(metadata, common);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no error";
  };
  TestLayer requests({.q_lens = {1, 1, 1}, .kv_lens = {50, 60, 70}});
  EXPECT_EQ(
      error_of(requests.common()),
      "update_in_place: num_requests is 3, over the 2 that the graph was captured for. Replay a "
      "larger graph.");
  TestLayer tokens({.q_lens = {2, 2}, .kv_lens = {50, 60}});
  EXPECT_NE(error_of(tokens.common()).find("num_actual_tokens is 4, over the 3"),
            std::string::npos);
  TestLayer lengths({.q_lens = {1}, .kv_lens = {513}});
  EXPECT_NE(error_of(lengths.common()).find("kv_lens[0] is 513"), std::string::npos);
  CommonAttnMetadata not_causal = captured.common();
  not_causal.causal = false;
  EXPECT_NE(error_of(not_causal).find("not causal, unlike the captured one"), std::string::npos);
  EXPECT_EQ(replay(captured, metadata), "");

  HpcAttnMetadata foreign = builder.build(0, captured.common());
  EXPECT_THROW(builder.update_in_place(foreign, captured.common()), InvalidArgument);
}

}  // namespace
}  // namespace hpcattn
