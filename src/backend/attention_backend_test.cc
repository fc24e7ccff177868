// SPDX-License-Identifier: Apache-2.0
#include "hpcattn/backend/attention_backend.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "hpcattn/counters.h"
#include "hpcattn/error.h"
#include "src/backend/test_layer.h"
#include "src/cpu/attention/task.h"
#include "src/ops/support.h"

namespace hpcattn {
namespace {

using testkit::LayerCase;
using testkit::TestLayer;

constexpr Device kGpu{.type = DeviceType::kCuda, .index = 1};

BackendRequest good_request() {
  return {.num_q_heads = 32, .num_kv_heads = 8, .head_dim = 128, .page_size = 64};
}

/// The reasons, one a line.
std::string reasons_of(const BackendRequest& request) {
  std::string text;
  for (const std::string& reason : HpcAttentionBackend::validate(request)) text += reason + "\n";
  return text;
}

TEST(HpcAttentionBackendTest, NameAndFlags) {
  EXPECT_EQ(HpcAttentionBackend::name(), "HPC_ATTN");
  EXPECT_TRUE(HpcAttentionBackend::kForwardIncludesKvCacheUpdate);
  EXPECT_TRUE(HpcAttentionBackend::kAcceptsOutputBuffer);
}

TEST(HpcAttentionBackendTest, EveryAdvertisedDTypeIsAccepted) {
  EXPECT_EQ(HpcAttentionBackend::supported_dtypes().size(), 3U);
  for (DType dtype : HpcAttentionBackend::supported_dtypes()) {
    for (std::string_view kv : HpcAttentionBackend::supported_kv_cache_dtypes()) {
      BackendRequest request = good_request();
      request.dtype = dtype;
      request.kv_cache_dtype = kv;
      const DType stored = parse_kv_cache_dtype(kv, dtype).value();
      EXPECT_EQ(reasons_of(request).empty(), stored == dtype || is_fp8(stored))
          << name(dtype) << " " << kv << "\n"
          << reasons_of(request);
    }
  }
}

TEST(HpcAttentionBackendTest, EveryAdvertisedShapeIsAccepted) {
  for (std::int64_t head_dim : HpcAttentionBackend::supported_head_dims()) {
    for (std::int64_t page_size : {8, 16, 24, 64, 256, 1000}) {
      for (std::int64_t group : {1, 3, 5, 8, 64}) {
        BackendRequest request = good_request();
        request.head_dim = head_dim;
        request.page_size = page_size;
        request.num_q_heads = 2 * group;
        request.num_kv_heads = 2;
        EXPECT_TRUE(HpcAttentionBackend::supports_page_size(page_size));
        EXPECT_EQ(reasons_of(request), "");
      }
    }
  }
  EXPECT_EQ(HpcAttentionBackend::page_size_multiple(), 8);
  EXPECT_FALSE(HpcAttentionBackend::supports_page_size(12));
  EXPECT_EQ(HpcAttentionBackend::hopper_page_sizes().size(), 5U);
}

TEST(HpcAttentionBackendTest, ComputePaths) {
  using C = ComputeCapability;
  EXPECT_EQ(HpcAttentionBackend::compute_path(C{7, 5}), ComputePath::kNone);
  EXPECT_EQ(HpcAttentionBackend::compute_path(C{8, 0}), ComputePath::kGenericCuda);
  EXPECT_EQ(HpcAttentionBackend::compute_path(C{8, 9}), ComputePath::kGenericCuda);
  EXPECT_EQ(HpcAttentionBackend::compute_path(C{9, 0}), ComputePath::kHopper);
  EXPECT_EQ(HpcAttentionBackend::compute_path(C{10, 0}), ComputePath::kGenericCuda);
  EXPECT_TRUE(HpcAttentionBackend::is_built(ComputePath::kCpu));
  EXPECT_TRUE(HpcAttentionBackend::is_built(ComputePath::kGenericCuda));
  EXPECT_TRUE(HpcAttentionBackend::is_built(ComputePath::kHopper));
  EXPECT_FALSE(HpcAttentionBackend::is_built(ComputePath::kNone));
}

TEST(HpcAttentionBackendTest, HopperDecodesByAKernelOfItsOwn) {
  using C = ComputeCapability;
  EXPECT_EQ(HpcAttentionBackend::serving_path(C{7, 5}), ComputePath::kNone);
  EXPECT_EQ(HpcAttentionBackend::serving_path(C{8, 6}), ComputePath::kGenericCuda);
  EXPECT_EQ(HpcAttentionBackend::serving_path(C{9, 0}), ComputePath::kHopper);
  EXPECT_FALSE(HpcAttentionBackend::supports_compute_capability(C{7, 5}));
  for (C capability : {C{8, 0}, C{8, 9}, C{9, 0}, C{10, 0}, C{12, 0}}) {
    EXPECT_TRUE(HpcAttentionBackend::supports_compute_capability(capability));
    BackendRequest request = good_request();
    request.device = kGpu;
    request.capability = capability;
    EXPECT_EQ(reasons_of(request), "");
    const KernelExplanation decode = HpcAttentionBackend::explain(request, 1);
    const bool hopper = capability == C(9, 0);
    EXPECT_EQ(decode.kernel, hopper ? "cuda/sm90/decode" : "cuda/generic/attention");
    EXPECT_EQ(decode.reason.find("at most 32 on average of a batch take Hopper's decode kernel") !=
                  std::string::npos,
              hopper);
    EXPECT_EQ(HpcAttentionBackend::explain(request, 9).kernel,
              hopper ? "cuda/sm90/prefill" : "cuda/generic/attention");
    request.kv_cache_dtype = "fp8";
    EXPECT_EQ(HpcAttentionBackend::explain(request, 9).kernel, "cuda/generic/attention");
    request.kv_cache_dtype = "auto";
    request.page_size = 24;
    EXPECT_EQ(HpcAttentionBackend::explain(request, 1).kernel, "cuda/generic/attention");
    request.page_size = 16;
    EXPECT_NE(decode.reason.find("4 rows (1 query tokens x 4 heads of a group) read each KV head: "
                                 "at most 16 are one narrow tile"),
              std::string::npos);
    EXPECT_NE(HpcAttentionBackend::explain(request, 5).reason.find("more than 16 are tiles of 128"),
              std::string::npos);
  }
}

TEST(HpcAttentionBackendTest, KvCacheShapeAndOrderOfEachLayout) {
  using V = std::vector<std::int64_t>;
  using O = std::vector<int>;
  const auto shape = [](KvCacheLayout layout) {
    return HpcAttentionBackend::kv_cache_shape(100, 64, 8, 128, layout);
  };
  EXPECT_EQ(HpcAttentionBackend::kv_cache_shape(100, 64, 8, 128), V({100, 2, 64, 8, 128}));
  EXPECT_EQ(shape(KvCacheLayout::kHnd), V({100, 2, 64, 8, 128}));
  EXPECT_EQ(shape(KvCacheLayout::kPacked), V({100, 8, 64, 256}));
  EXPECT_EQ(HpcAttentionBackend::kv_cache_stride_order(), O({0, 1, 2, 3, 4}));
  EXPECT_EQ(HpcAttentionBackend::kv_cache_stride_order(true), O({1, 0, 2, 3, 4, 5}));
  EXPECT_EQ(HpcAttentionBackend::kv_cache_stride_order(false, KvCacheLayout::kHnd),
            O({0, 1, 3, 2, 4}));
  EXPECT_EQ(HpcAttentionBackend::kv_cache_stride_order(true, KvCacheLayout::kHnd),
            O({1, 0, 2, 4, 3, 5}));
  EXPECT_EQ(HpcAttentionBackend::preferred_kv_cache_layout(), KvCacheLayout::kNhd);
  // Every order names each dim of its shape once, and with the layers dimension one more.
  for (KvCacheLayout layout : HpcAttentionBackend::supported_kv_cache_layouts()) {
    for (bool layers : {false, true}) {
      O order = HpcAttentionBackend::kv_cache_stride_order(layers, layout);
      std::sort(order.begin(), order.end());
      ASSERT_EQ(order.size(), shape(layout).size() + (layers ? 1U : 0U));
      for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], int(i));
    }
  }
  EXPECT_THROW(HpcAttentionBackend::kv_cache_shape(100, 60, 8, 128), Unsupported);
  EXPECT_THROW(HpcAttentionBackend::kv_cache_shape(100, 64, 8, 72), Unsupported);
  EXPECT_THROW(HpcAttentionBackend::kv_cache_shape(-1, 64, 8, 128), InvalidArgument);
}

TEST(HpcAttentionBackendTest, GraphSupportGivesItsReason) {
  EXPECT_EQ(HpcAttentionBackend::graph_support(Device{}).level, GraphSupport::kAlways);
  EXPECT_NE(HpcAttentionBackend::graph_support(Device{}).reason.find("update_in_place"),
            std::string::npos);
  EXPECT_EQ(HpcAttentionBackend::graph_support(kGpu).level, GraphSupport::kAlways);
  EXPECT_NE(HpcAttentionBackend::graph_support(kGpu).reason.find("in stream order"),
            std::string::npos);
}

struct Refusal {
  const char* name;
  void (*change)(BackendRequest&);
  const char* reason;
};

class RefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(RefusalTest, IsTheOnlyReasonAndNamesWhatIsExpected) {
  BackendRequest request = good_request();
  GetParam().change(request);
  EXPECT_EQ(reasons_of(request), std::string(GetParam().reason) + "\n");
}

const Refusal kRefusals[] = {
    {"HeadDim", [](BackendRequest& r) { r.head_dim = 72; },
     "head_dim is 72, expected 64, 80, 96, 128, 192 or 256"},
    {"PageSize", [](BackendRequest& r) { r.page_size = 20; },
     "page_size is 20, expected a multiple of 8"},
    {"Heads", [](BackendRequest& r) { r.num_q_heads = 30; },
     "30 query heads do not divide into groups over 8 KV heads"},
    {"NoQueryHeads", [](BackendRequest& r) { r.num_q_heads = 0; },
     "num_q_heads is 0, expected 1 or more"},
    {"NoKvHeads", [](BackendRequest& r) { r.num_kv_heads = -8; },
     "num_kv_heads is -8, expected 1 or more"},
    {"DType", [](BackendRequest& r) { r.dtype = DType::kInt32; },
     "dtype is int32, expected float32, float16 or bfloat16"},
    {"KvDType", [](BackendRequest& r) { r.kv_cache_dtype = "int8"; },
     "kv_cache_dtype is 'int8', expected auto, float32, float16, bfloat16, fp8, fp8_e4m3 or fp8_e5m2"},
    {"FusedOutput", [](BackendRequest& r) { r.fused_output_dtype = DType::kFloat8E5M2; },
     "fused output of float8_e5m2 is not there, expected with a bfloat16 q: K and V bfloat16, "
     "float8_e4m3 or float8_e5m2, out bfloat16 or float8_e4m3"},
    {"QueryDType",
     [](BackendRequest& r) {
       r.kv_cache_dtype = "fp8";
       r.query_dtype = DType::kFloat8E5M2;
     },
     "query_dtype is float8_e5m2, expected bfloat16 (as dtype) or float8_e4m3\n"
     "a float8_e4m3 KV cache can not be read by a float8_e5m2 query, expected q float32, float16, "
     "bfloat16 or float8_e4m3"},
    {"Fp8QueryOverWideCache", [](BackendRequest& r) { r.query_dtype = DType::kFloat8E4M3; },
     "a bfloat16 KV cache can not be read by a float8_e4m3 query, expected with a float8_e4m3 q: K and V "
     "float8_e4m3 or float8_e5m2, out float32, float16, bfloat16 or float8_e4m3"},
    {"Fp8QueryWithoutCache",
     [](BackendRequest& r) {
       r.attention_type = AttentionType::kEncoderOnly;
       r.query_dtype = DType::kFloat8E4M3;
     },
     "a float8 query needs a float8 cache, and attention without a cache has none"},
    {"Scale", [](BackendRequest& r) { r.scale = std::numeric_limits<double>::infinity(); },
     "scale is inf, expected a finite number"},
    {"Window", [](BackendRequest& r) { r.window = 0; },
     "window is 0, expected 1 or more tokens (its own included)"},
    {"Softcap", [](BackendRequest& r) { r.softcap = -1.0; },
     "softcap is -1, expected 0 (none) or above"},
    {"SpeculativeTokens", [](BackendRequest& r) { r.num_speculative_tokens = -1; },
     "num_speculative_tokens is -1, expected 0 or more"},
    {"CrossWindow",
     [](BackendRequest& r) {
       r.attention_type = AttentionType::kEncoderDecoder;
       r.window = 8;
     },
     "a window over an encoder's tokens: cross attention has no distance between positions"},
    {"CrossAlibi",
     [](BackendRequest& r) {
       r.attention_type = AttentionType::kEncoderDecoder;
       r.alibi = true;
     },
     "ALiBi over an encoder's tokens: cross attention has no distance between positions"},
    {"AlibiSqrt", [](BackendRequest& r) { r.alibi_sqrt = true; },
     "square-root ALiBi is not offered, only the linear one"},
    {"Mla", [](BackendRequest& r) { r.mla = true; }, "multi-head latent attention is not offered"},
    {"Sparse", [](BackendRequest& r) { r.sparse = true; },
     "sparse attention (to chosen pages) is not offered"},
    {"MultimodalPrefix", [](BackendRequest& r) { r.multimodal_prefix = true; },
     "spans that attend both ways within a causal request are not offered; a whole request can "
     "(non_causal)"},
    {"ContextParallel", [](BackendRequest& r) { r.decode_context_parallel = 2; },
     "context parallel of 2 (decode) and 1 (prefill) ranks: exchanging partial results is the engine's; "
     "paged_attention returns their LSE and merge_partials joins them"},
    {"GpuWithoutCapability", [](BackendRequest& r) { r.device = kGpu; },
     "the compute capability of cuda:1 is not given"},
    {"OldGpu",
     [](BackendRequest& r) {
       r.device = kGpu;
       r.capability = ComputeCapability{7, 5};
     },
     "cuda:1 has compute capability 7.5, expected 8.0 or above"},
    {"Float32OnAGpu",
     [](BackendRequest& r) {
       r.device = kGpu;
       r.capability = ComputeCapability{9, 0};
       r.dtype = DType::kFloat32;
     },
     "dtype float32 runs on the CPU alone, got cuda:1; use float16 or bfloat16 there"},
};

INSTANTIATE_TEST_SUITE_P(HpcAttentionBackend, RefusalTest, ::testing::ValuesIn(kRefusals),
                         [](const auto& refusal) { return std::string(refusal.param.name); });

TEST(HpcAttentionBackendTest, ValidateGivesEveryReason) {
  BackendRequest request = good_request();
  request.head_dim = 100;
  request.page_size = 1;
  request.kv_cache_dtype = "float16";
  request.window = -1;
  request.mla = true;
  const std::vector<std::string> reasons = HpcAttentionBackend::validate(request);
  ASSERT_EQ(reasons.size(), 6U) << reasons_of(request);
  EXPECT_NE(reasons[0].find("head_dim"), std::string::npos);
  EXPECT_NE(reasons[1].find("page_size"), std::string::npos);
  EXPECT_NE(reasons[2].find("can not be written by a bfloat16 model"), std::string::npos);
  EXPECT_NE(reasons[3].find("can not be read by a bfloat16 query"), std::string::npos);
  EXPECT_NE(reasons[4].find("window"), std::string::npos);
  EXPECT_NE(reasons[5].find("latent"), std::string::npos);
}

TEST(HpcAttentionBackendTest, ServesWhatOthersRefuse) {
  BackendRequest request = good_request();
  request.window = 1;
  request.softcap = 30.0;
  request.alibi = request.sinks = request.non_causal = request.per_head_kv_scales = true;
  request.batch_invariant = request.kv_connector = true;
  request.num_speculative_tokens = 31;
  request.kv_cache_dtype = "fp8_e5m2";
  request.fused_output_dtype = DType::kFloat8E4M3;
  EXPECT_EQ(reasons_of(request), "");
  request.attention_type = AttentionType::kEncoderDecoder;
  request.window.reset();
  request.alibi = false;
  EXPECT_EQ(reasons_of(request), "");
}

TEST(HpcAttentionBackendTest, EncoderAttentionNeedsNoPages) {
  for (AttentionType type : {AttentionType::kEncoder, AttentionType::kEncoderOnly}) {
    BackendRequest request = good_request();
    request.attention_type = type;
    request.page_size = 0;
    EXPECT_EQ(reasons_of(request), "");
  }
}

TEST(HpcAttentionBackendTest, ExplainRefusesWithEveryReason) {
  BackendRequest request = good_request();
  request.device = kGpu;
  request.capability = ComputeCapability{7, 0};
  request.sparse = true;
  const KernelExplanation explanation = HpcAttentionBackend::explain(request, 1);
  EXPECT_EQ(explanation.kernel, "");
  EXPECT_EQ(explanation.refusals, HpcAttentionBackend::validate(request));
  EXPECT_EQ(explanation.refusals.size(), 2U);
  EXPECT_THROW(HpcAttentionBackend::explain(good_request(), 0), InvalidArgument);
}

// The kernel that explain() names is the one that the counters say has run.
TEST(HpcAttentionBackendTest, ExplainNamesTheKernelThatRuns) {
  constexpr std::int32_t kMostNarrow = cpu::kNarrowRows / 4;  // query tokens of 4 heads a group
  for (std::int32_t query_tokens : {1, kMostNarrow, kMostNarrow + 1, 20}) {
    const LayerCase c{
        .q_lens = {query_tokens}, .kv_lens = {70}, .num_q_heads = 8, .num_kv_heads = 2};
    BackendRequest request{.num_q_heads = 8, .num_kv_heads = 2, .head_dim = 64};
    request.dtype = DType::kFloat32;
    const KernelExplanation explanation = HpcAttentionBackend::explain(request, query_tokens);
    const char* shape = query_tokens <= kMostNarrow ? "cpu/narrow/" : "cpu/wide/";
    EXPECT_EQ(explanation.kernel.find(shape), 0U) << explanation.kernel;
    EXPECT_NE(explanation.reason.find(std::to_string(4 * query_tokens) + " rows"),
              std::string::npos)
        << explanation.reason;

    TestLayer layer(c);
    reset_counters();
    ASSERT_EQ(testkit::run_and_check(layer, layer.impl_options()), "");
    const auto counts = counters();
    for (const auto& [name, count] : counts) {
      if (name.rfind("cpu/", 0) != 0) continue;
      EXPECT_EQ(count > 0, name == explanation.kernel) << name << " ran " << count << " tasks";
    }
    ASSERT_TRUE(counts.contains(explanation.kernel)) << explanation.kernel;
  }
}

}  // namespace
}  // namespace hpcattn
