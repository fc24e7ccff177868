// SPDX-License-Identifier: Apache-2.0
// A little of everything, with few kernels to compile: for sanitizers, for faults that are put into
// kernels on purpose (tools/break_kernels.py), and for a first look at a new GPU.
#include <gtest/gtest.h>

#include "src/gpu_tests/attention_run.h"
#include "src/gpu_tests/expect.h"
#include "src/gpu_tests/kv_run.h"

namespace hpcattn {
namespace {

using testkit::AttentionCase;
using testkit::DTypes;
using testkit::GpuLane;
using testkit::Scales;

constexpr DTypes kBf16 = {DType::kBFloat16, DType::kBFloat16, DType::kBFloat16};
constexpr DTypes kBf16Fp8 = {DType::kBFloat16, DType::kFloat8E4M3, DType::kBFloat16};
constexpr DTypes kFp8 = {DType::kFloat8E4M3, DType::kFloat8E5M2, DType::kFloat8E4M3};
constexpr DTypes kE4M3 = {DType::kFloat8E4M3, DType::kFloat8E4M3, DType::kBFloat16};

/// Few rows and many, lengths of no multiple of anything, an empty request.
AttentionCase base_case(const DTypes& dtypes) {
  AttentionCase c;
  c.head_dim = 128;
  c.num_q_heads = 6;
  c.q_lens = {1, 5, 0, 90};
  c.kv_lens = {333, 71, 9, 200};
  testkit::set_dtypes(c, dtypes);
  return c;
}

/// Few rows of each request on average, as Hopper's decode kernel takes them: a narrow tile, an
/// empty request, a wide tile of several passes, KV in pieces.
AttentionCase decode_case(const DTypes& dtypes) {
  AttentionCase c = base_case(dtypes);
  c.q_lens = {1, 3, 0, 17, 1, 1};
  c.kv_lens = {333, 71, 9, 200, 700, 1};
  return c;
}

/// A case in each way to call (run_on_gpu).
class CaseList {
 public:
  void add(const char* name, const AttentionCase& base, void (*change)(AttentionCase&)) {
    AttentionCase c = base;
    c.name = name;
    change(c);
    for (std::uint64_t form = 0; form < 4; ++form) {
      c.seed = 8 * cases.size() + form;
      cases.push_back(c);
    }
  }
  std::vector<AttentionCase> cases;
};

TEST(GpuQuick, Attention) {
  CaseList list;
  const auto add = [&](const char* name, const AttentionCase& base,
                       void (*change)(AttentionCase&)) { list.add(name, base, change); };
  const AttentionCase bf16 = base_case(kBf16);
  add("causal", bf16, [](AttentionCase&) {});
  add("bidirectional", bf16, [](AttentionCase& c) { c.causal = false; });
  add("window", bf16, [](AttentionCase& c) { c.window = 40; });
  add("bidirectional window", bf16, [](AttentionCase& c) { c.causal = false, c.window = 9; });
  add("sinks, holes", bf16,
      [](AttentionCase& c) { c.sinks = DType::kFloat32, c.hole_share = 0.4; });
  add("halves, scale", bf16, [](AttentionCase& c) {
    c.layout = testkit::KvLayout::kHalves;
    c.scale = 0.3;
  });
  add("large scores", bf16, [](AttentionCase& c) { c.deviation = 4.0; });
  add("negative scale", bf16, [](AttentionCase& c) { c.scale = -0.1; });
  add("bf16 with fp8 KV", base_case(kBf16Fp8), [](AttentionCase&) {});
  add("softcap and ALiBi", base_case(kBf16Fp8), [](AttentionCase& c) {
    c.softcap = 4.0, c.alibi = true, c.layout = testkit::KvLayout::kMixed;
  });
  add("fp8", base_case(kFp8), [](AttentionCase&) {});
  add("decode", decode_case(kBf16), [](AttentionCase& c) { c.window = 150; });
  add("decode, sinks, holes, large scores", decode_case(kBf16), [](AttentionCase& c) {
    c.sinks = DType::kFloat32, c.hole_share = 0.4, c.deviation = 4.0, c.scale = -0.1;
  });
  add("decode, bf16 with fp8 KV", decode_case(kBf16Fp8), [](AttentionCase& c) {
    c.softcap = 4.0, c.alibi = true, c.layout = testkit::KvLayout::kMixed;
  });
  add("decode, fp8", decode_case(kFp8), [](AttentionCase& c) { c.causal = false; });
  // More tasks than ctas, few rows and many; partials that are joined in two steps.
  add("many decode rows", bf16, [](AttentionCase& c) {
    c.q_lens.assign(150, 1);
    c.kv_lens.assign(150, 20);
  });
  add("many prompts", bf16, [](AttentionCase& c) {
    c.q_lens.assign(150, 12);
    c.kv_lens.assign(150, 20);
  });
  // As many requests as a call without a plan may have, of unlike lengths, some without a token.
  add("whole tiles", bf16, [](AttentionCase& c) {
    c.q_lens.clear(), c.kv_lens.clear();
    for (int i = 0; i < 32; ++i) {
      c.q_lens.push_back(i % 5 == 1 ? 0 : 7 * i % 90 + 1);
      c.kv_lens.push_back(c.q_lens.back() + 41 * i % 300);
    }
  });
  add("many splits", bf16, [](AttentionCase& c) {
    c.q_lens = {1, 20};
    c.kv_lens = {1900, 1300};
  });
  testkit::expect_all_right(list.cases, testkit::run_on_gpu);
}

/// q, K and V of e4m3, which Hopper's prefill kernel multiplies as they are where it is chosen.
TEST(GpuQuick, AttentionOfFp8) {
  CaseList list;
  const AttentionCase base = base_case(kE4M3);
  list.add("fp8, causal", base, [](AttentionCase&) {});
  list.add("fp8, window, sinks, holes", base,
           [](AttentionCase& c) { c.window = 40, c.sinks = DType::kFloat32, c.hole_share = 0.4; });
  list.add("fp8, large scores, negative scale", base,
           [](AttentionCase& c) { c.deviation = 4.0, c.scale = -0.1; });
  list.add("fp8, softcap and ALiBi", base, [](AttentionCase& c) {
    c.softcap = 4.0, c.alibi = true, c.layout = testkit::KvLayout::kMixed;
  });
  list.add("fp8, many splits", base, [](AttentionCase& c) {
    c.q_lens = {1, 20};
    c.kv_lens = {1900, 1300};
  });
  testkit::expect_all_right(list.cases, testkit::run_on_gpu);
}

TEST(GpuQuick, Store) {
  std::vector<testkit::StoreCase> cases;
  for (DType dtype : {DType::kBFloat16, DType::kFloat8E4M3}) {
    for (auto layout : {testkit::KvLayout::kHnd, testkit::KvLayout::kHalves}) {
      testkit::StoreCase c;
      c.cache_dtype = dtype;
      c.layout = layout;
      c.padding_tokens = 3;
      cases.push_back(c);
    }
  }
  testkit::expect_all_right(cases, [](GpuLane& lane, const testkit::StoreCase& c) {
    return testkit::run_store(lane, c);
  });
}

TEST(GpuQuick, Rope) {
  std::vector<testkit::RopeCase> cases;
  for (auto policy :
       {QkNormPolicy::kNone, QkNormPolicy::kRopeThenNorm, QkNormPolicy::kNormThenRope}) {
    for (auto places : {testkit::Places::kPageTable, testkit::Places::kSlotMapping}) {
      for (auto style : {RopeStyle::kNeox, RopeStyle::kInterleaved}) {
        testkit::RopeCase c;
        c.name = "quick";
        c.seed = cases.size() + 1;
        c.policy = policy;
        c.places = places;
        c.style = style;
        c.rotary_dim = 48;
        c.eps = 0.25;  // large enough to show
        c.cache_dtype = cases.size() % 2 == 0 ? DType::kBFloat16 : DType::kFloat8E4M3;
        c.q_output = static_cast<testkit::QOutput>(cases.size() % 4);
        // Whole pieces go to the kernel for pairs, others to the general one.
        c.aligned = cases.size() % 3 != 2;
        if (!c.aligned) c.rotary_dim = 40;
        cases.push_back(c);
      }
    }
  }
  // More steps than warps at once: each has several, of several tokens.
  testkit::RopeCase many = cases[4];
  many.seed = cases.size() + 1;
  many.q_lens = {900, 1, 700};
  many.past_lens = {0, 40, 3};
  many.num_q_heads = 32;
  many.aligned = true;
  cases.push_back(many);
  testkit::expect_all_right(cases, testkit::run_rope);
}

TEST(GpuQuick, Merge) {
  std::vector<testkit::MergeCase> cases;
  for (std::int64_t num_partials : {1, 3, 40}) {
    testkit::MergeCase c;
    c.seed = cases.size() + 1;
    c.dtype = c.out_dtype = DType::kBFloat16;
    c.num_partials = num_partials;
    c.row_gap = 3;
    cases.push_back(c);
  }
  testkit::expect_all_right(cases, testkit::run_merge);
}

}  // namespace
}  // namespace hpcattn
