// SPDX-License-Identifier: Apache-2.0
// What HpcAttentionImpl refuses: the text, and that nothing was written.
#include <gtest/gtest.h>

#include <algorithm>

#include "hpcattn/backend/attention_impl.h"
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

TEST(HpcAttentionImplTest, TensorsOfTwoDevicesAreRefused) {
  TestLayer layer({.q_lens = {2}, .kv_lens = {20}});
  HpcAttnMetadataBuilder builder(layer.builder_options());
  const HpcAttnMetadata metadata = metadata_of(builder, layer);
  const auto elsewhere = [](const Tensor& tensor) {
    return Tensor(tensor.data(), tensor.dtype(), tensor.sizes(), tensor.strides(),
                  {.type = DeviceType::kCuda, .index = 2});
  };
  HpcAttentionForwardArgs args = layer.forward_args(metadata);
  args.output = elsewhere(args.output);
  EXPECT_NE(error_of([&] {
              HpcAttentionImpl(layer.impl_options()).forward(args);
            }).find("lse is on cpu, expected cuda:2"),
            std::string::npos);
  args.lse = {};
  EXPECT_NE(error_of([&] {
              HpcAttentionImpl(layer.impl_options()).forward(args);
            }).find("out is on cuda:2, expected cpu"),
            std::string::npos);
  HpcAttentionImplOptions options = layer.impl_options();
  options.alibi_slopes = std::vector<float>(4, 0.5F);
  EXPECT_EQ(error_of([&] { HpcAttentionImpl(options).forward(args); }),
            "HpcAttentionImpl: the ALiBi slopes are on cpu and output is on cuda:2. Give "
            "HpcAttentionImplOptions::device as that.");
}

TEST(HpcAttentionImplTest, RefusedCallsWriteNothing) {
  LayerCase c = kMixed;
  c.kv_cache_dtype = "fp8";
  TestLayer layer(c);
  HpcAttnMetadataBuilder builder(layer.builder_options());
  const HpcAttnMetadata good = metadata_of(builder, layer);
  const HpcAttentionImpl impl(layer.impl_options());
  const auto pool = layer.pool_bytes();
  const auto output = layer.output().bytes();
  const auto refused = [&](const char* part, auto change) {
    HpcAttnMetadata metadata = good;
    HpcAttentionForwardArgs args = layer.forward_args(metadata);
    LayerScales scales = layer.scales();
    args.layer = &scales;
    change(args, metadata, scales);
    const std::string error = error_of([&] { impl.forward(args); });
    EXPECT_NE(error.find(part), std::string::npos) << error;
    EXPECT_EQ(layer.pool_bytes(), pool) << part;
    EXPECT_EQ(layer.output().bytes(), output) << part;
  };
  refused("layer is not given", [](auto& args, auto&, auto&) { args.layer = nullptr; });
  refused("query is float32",
          [](auto& args, auto&, auto&) { args.query = args.query.slice(0, 0, 3); });
  refused("value is float32",
          [](auto& args, auto&, auto&) { args.value = args.value.slice(0, 0, 3); });
  refused("value is not given", [](auto& args, auto&, auto&) { args.value = {}; });
  refused("key and value of layer 'layer' are not given",
          [](auto& args, auto&, auto&) { args.key = args.value = {}; });
  refused("kv_cache is not given", [](auto& args, auto&, auto&) { args.kv_cache = {}; });
  refused("kv_cache has dtype int32", [](auto& args, auto&, auto&) {
    args.kv_cache =
        Tensor(args.kv_cache.data(), DType::kInt32, args.kv_cache.sizes(), args.kv_cache.strides());
  });
  refused("expected k_scale and v_scale", [](auto&, auto&, auto& scales) { scales.v_scale = {}; });
  refused("lse is float32", [](auto& args, auto&, auto&) { args.lse = args.lse.slice(0, 0, 2); });
  const GuardedTensor scale = GuardedTensor::of_floats({1.0});
  refused("expected a scale for a float8 output and for no other",
          [&](auto& args, auto&, auto&) { args.output_scale = scale; });
  // What only the attention would refuse is refused before K and V are stored.
  const GuardedTensor table(DType::kInt32, {4, good.page_table.size(1)});
  std::fill_n(table.tensor().data_as<std::int32_t>(), table.tensor().num_elements(), 1 << 20);
  refused("expected a page id below",
          [&](auto&, auto& metadata, auto&) { metadata.page_table = table; });
  const GuardedTensor lens = GuardedTensor::of_ints(std::vector<std::int32_t>{90, 1, 37, 71});
  refused("plan", [&](auto&, auto& metadata, auto&) { metadata.kv_lens = lens; });
}

TEST(HpcAttentionImplTest, APlanOfUnlikeLayersIsRefused) {
  TestLayer layer(kMixed);
  HpcAttnMetadataBuilder builder(layer.builder_options());  // for layers without a window
  const HpcAttnMetadata metadata = metadata_of(builder, layer);
  HpcAttentionImplOptions options = layer.impl_options();
  options.sliding_window = 8;
  const auto pool = layer.pool_bytes();
  EXPECT_THROW(HpcAttentionImpl(options).forward(layer.forward_args(metadata)), InvalidArgument);
  EXPECT_EQ(layer.pool_bytes(), pool);
}

TEST(HpcAttentionImplTest, AFp8QueryNeedsItsScale) {
  LayerCase c{.q_lens = {2}, .kv_lens = {20}};
  c.kv_cache_dtype = "fp8";
  TestLayer layer(c);
  HpcAttnMetadataBuilderOptions builder_options = layer.builder_options();
  builder_options.group.q_dtype = DType::kFloat8E4M3;
  HpcAttnMetadataBuilder builder(builder_options);
  const HpcAttnMetadata metadata = metadata_of(builder, layer);
  HpcAttentionForwardArgs args = layer.forward_args(metadata);
  const GuardedTensor query(DType::kFloat8E4M3, {2, 4, 64});
  testkit::Rng rng(3);
  const_cast<GuardedTensor&>(query).fill_normal(rng);
  args.query = query;
  const HpcAttentionImpl impl(layer.impl_options());
  EXPECT_NE(error_of([&] {
              impl.forward(args);
            }).find("layer 'layer' has no Q scale: no prologue left one in step 0"),
            std::string::npos);
  LayerScales scales = layer.scales();
  const GuardedTensor q_scale = GuardedTensor::of_floats({0.3});
  scales.q_scale = q_scale;
  args.layer = &scales;
  impl.forward(args);
  AttentionOptions want = layer.reference_options(layer.impl_options());
  want.q_scale = q_scale;
  EXPECT_EQ(layer.check(want, query), "");
}

}  // namespace
}  // namespace hpcattn
