// SPDX-License-Identifier: Apache-2.0
// Calls on CUDA tensors that must be refused, with their texts, and nothing written; and what only
// the GPU can find wrong, which the next call tells.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "hpcattn/error.h"
#include "src/gpu_tests/attention_run.h"
#include "src/gpu_tests/expect.h"

namespace hpcattn {
namespace {

using testkit::AttentionBatch;
using testkit::AttentionCase;
using testkit::DTypes;
using testkit::GuardedTensor;

constexpr DTypes kBf16 = {DType::kBFloat16, DType::kBFloat16, DType::kBFloat16};
constexpr DTypes kFp8 = {DType::kFloat8E4M3, DType::kFloat8E4M3, DType::kFloat8E4M3};
constexpr DTypes kF32 = {DType::kFloat32, DType::kFloat32, DType::kFloat32};

using Paged = PagedAttentionArgs;

AttentionCase base_case(const DTypes& dtypes) {
  AttentionCase c;
  c.q_lens = {1, 5, 3};
  c.kv_lens = {33, 20, 40};
  testkit::set_dtypes(c, dtypes);
  return c;
}

/// Spoils arguments that are on the GPU, and expects `Refusal` with `text`, and outputs as they
/// were.
template <typename Refusal>
void expect_refused(const DTypes& dtypes, const std::string& text,
                    const std::function<void(Paged&)>& spoil, bool check_values = false) {
  SCOPED_TRACE(text);
  const AttentionBatch batch(base_case(dtypes));
  const std::vector<std::uint8_t> out = batch.out().bytes();
  const std::vector<std::uint8_t> lse = batch.lse().bytes();
  const auto call = [&](Paged a, Execution execution) {
    spoil(a);
    execution.check_values = check_values;
    paged_attention(a, execution);
  };
  try {
    testkit::call_on_gpu(testkit::main_lane(), batch.paged(), call);
    ADD_FAILURE() << "was accepted";
  } catch (const Refusal& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  } catch (const Error& error) {
    ADD_FAILURE() << "another kind of error: " << error.what();
  }
  EXPECT_EQ(batch.out().bytes(), out);
  EXPECT_EQ(batch.lse().bytes(), lse);
  EXPECT_EQ(batch.check_surroundings(), "");
}

struct Row {
  const char* text;
  std::function<void(Paged&)> spoil;
};

template <typename Refusal>
void expect_each_refused(const DTypes& dtypes, const std::vector<Row>& rows) {
  for (const Row& row : rows) expect_refused<Refusal>(dtypes, row.text, row.spoil);
}

Tensor with_device(const Tensor& t, Device device) {
  return {t.data(), t.dtype(), t.sizes(), t.strides(), device};
}

Tensor with_dtype(const Tensor& t, DType dtype) {
  return {t.data(), dtype, t.sizes(), t.strides(), t.device()};
}

Tensor with_stride(const Tensor& t, int dim, std::int64_t stride) {
  std::vector<std::int64_t> strides(t.strides().begin(), t.strides().end());
  strides[static_cast<std::size_t>(dim)] = stride;
  return {t.data(), t.dtype(), t.sizes(), strides, t.device()};
}

TEST(GpuRefusals, ShapesStridesAndMemory) {
  expect_each_refused<InvalidArgument>(
      kBf16,
      {
          {"q is bfloat16[11, 64] on cuda:0, expected shape [any, any, any]",
           [](Paged& a) { a.q = a.q.select(1, 0); }},
          {"q has stride 2 in its last dim", [](Paged& a) { a.q = with_stride(a.q, 2, 2); }},
          {"k_cache is not given", [](Paged& a) { a.k_cache = {}; }},
          {"v_cache is bfloat16[", [](Paged& a) { a.v_cache = a.v_cache.slice(0, 0, 3); }},
          {"page_table is int32[2, ", [](Paged& a) { a.page_table = a.page_table.slice(0, 0, 2); }},
          {"cu_seqlens_q is int32[3] on cuda:0, expected shape [4]",
           [](Paged& a) { a.cu_seqlens_q = a.cu_seqlens_q.slice(0, 0, 3); }},
          {"out is bfloat16[11, 4, 32]", [](Paged& a) { a.out = a.out.slice(2, 0, 32); }},
          {"out is written and its strides lay entries over each other",
           [](Paged& a) { a.out = with_stride(a.out, 1, 0); }},
          {"out shares memory with q", [](Paged& a) { a.out = a.q; }},
          {"lse is float32[11] on cuda:0, expected shape [11, 4]",
           [](Paged& a) { a.lse = a.lse.select(1, 0); }},
      });
}

TEST(GpuRefusals, DTypesAndOptions) {
  expect_each_refused<InvalidArgument>(
      kBf16, {
                 {"page_table has dtype float32, expected int32",
                  [](Paged& a) { a.page_table = with_dtype(a.page_table, DType::kFloat32); }},
                 {"scale is nan", [](Paged& a) { a.options.scale = std::nan(""); }},
                 {"window is 0, expected 1 or more", [](Paged& a) { a.options.window = 0; }},
                 {"softcap is -1", [](Paged& a) { a.options.softcap = -1.0; }},
                 {"k_scale is given and k_cache is bfloat16",
                  [](Paged& a) { a.options.k_scale = a.lse.select(0, 0).slice(0, 0, 1); }},
             });
  expect_each_refused<InvalidArgument>(
      kFp8, {
                {"q_scale is not given", [](Paged& a) { a.options.q_scale = {}; }},
                {"v_scale is not given", [](Paged& a) { a.options.v_scale = {}; }},
                {"out_scale is not given", [](Paged& a) { a.options.out_scale = {}; }},
            });
  expect_each_refused<Unsupported>(
      kBf16,
      {
          {"q has dtype float8_e5m2", [](Paged& a) { a.q = with_dtype(a.q, DType::kFloat8E5M2); }},
          {"out float16", [](Paged& a) { a.out = with_dtype(a.out, DType::kFloat16); }},
      });
}

TEST(GpuRefusals, Float32IsForTheCpu) {
  expect_each_refused<Unsupported>(kF32, {{"float32", [](Paged&) {}}});
}

TEST(GpuRefusals, TensorsOfOtherDevices) {
  expect_each_refused<InvalidArgument>(
      kBf16,
      {
          {"k_cache is on cpu, expected cuda:0",
           [](Paged& a) { a.k_cache = with_device(a.k_cache, {}); }},
          {"page_table is on cpu, expected cuda:0",
           [](Paged& a) { a.page_table = with_device(a.page_table, {}); }},
          {"kv_lens is on cuda:1, expected cuda:0",
           [](Paged& a) { a.kv_lens = with_device(a.kv_lens, {DeviceType::kCuda, 1}); }},
          {"out is on cpu, expected cuda:0", [](Paged& a) { a.out = with_device(a.out, {}); }},
      });
}

/// Values lie on the GPU: they are looked at when the call asks for it.
TEST(GpuRefusals, ValuesWhereTheyAreChecked) {
  struct Values {
    const char* text;
    std::vector<std::int32_t> ends;
    std::vector<std::int32_t> lens;
  };
  const std::vector<Values> rows = {
      {"cu_seqlens_q[0] is 1, expected 0", {1, 1, 6, 9}, {33, 20, 40}},
      {"cu_seqlens_q[2] is 0, below the 1 before it", {0, 1, 0, 9}, {33, 20, 40}},
      {"cu_seqlens_q ends at 12, over the 11 of tokens in q", {0, 1, 6, 12}, {33, 20, 40}},
      {"kv_lens[1] is -1, expected 0 or more", {0, 1, 6, 9}, {33, -1, 40}},
      {"kv_lens[2] is 2147483647, page_table holds", {0, 1, 6, 9}, {33, 20, 2147483647}},
  };
  const testkit::GpuStream& stream = testkit::main_lane().stream;
  for (const Values& row : rows) {
    const testkit::DeviceMemory memory(64);
    stream.upload(memory.data(), row.ends.data(), 16);
    stream.upload(memory.data() + 32, row.lens.data(), 12);
    stream.wait();
    const auto spoil = [&](Paged& a) {
      const Device gpu{DeviceType::kCuda, 0};
      a.cu_seqlens_q = Tensor::contiguous(memory.data(), DType::kInt32, {4}, gpu);
      a.kv_lens = Tensor::contiguous(memory.data() + 32, DType::kInt32, {3}, gpu);
    };
    expect_refused<InvalidArgument>(kBf16, row.text, spoil, true);
  }
  const testkit::DeviceMemory table(256);
  stream.fill(table.data(), 0x70, 256);
  stream.wait();
  expect_refused<InvalidArgument>(
      kBf16, "page_table[0, 0] is 1886417008, expected a page id below",
      [&](Paged& a) {
        a.page_table =
            Tensor::contiguous(table.data(), DType::kInt32, {3, 6}, {DeviceType::kCuda, 0});
      },
      true);
}

/// `make` fills the plan, `call` is another one; the text is that of check_faults().
void expect_fault(const std::string& text, const std::function<void(AttentionGroup&)>& other_group,
                  const std::vector<std::int32_t>& other_lens) {
  SCOPED_TRACE(text);
  AttentionBatch batch(base_case(kBf16));
  Paged host = batch.paged();
  const GuardedTensor words = testkit::plan_memory(group_of(host), host.q.size(0), host.kv_lens);
  host.plan = words;
  testkit::GpuLane& lane = testkit::main_lane();
  const auto call = [&](const Paged& a, const Execution& execution) {
    AttentionGroup group = group_of(a);
    other_group(group);
    make_plan({group, a.cu_seqlens_q, a.kv_lens, 0, a.plan}, execution);
    lane.stream.wait();
    if (!other_lens.empty()) {
      lane.stream.upload(a.kv_lens.data(), other_lens.data(), other_lens.size() * 4);
    }
    paged_attention(a, execution);
  };
  try {
    testkit::call_on_gpu(lane, host, call);
    ADD_FAILURE() << "no fault was reported";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
  // Told once; the next call is served.
  EXPECT_EQ(testkit::run_on_gpu(lane, base_case(kBf16)), "");
}

TEST(GpuRefusals, APlanOfAnotherGroupOrOfOtherLengths) {
  const auto same = [](AttentionGroup&) {};
  expect_fault("another attention group", [](AttentionGroup& g) { g.window = 8; }, {});
  expect_fault("another attention group", [](AttentionGroup& g) { g.causal = false; }, {});
  expect_fault("another attention group", [](AttentionGroup& g) { g.page_size = 32; }, {});
  expect_fault("other lengths", same, {33, 20, 39});
}

TEST(GpuRefusals, APlanTensorThatIsTooSmall) {
  AttentionBatch batch(base_case(kBf16));
  Paged host = batch.paged();
  const GuardedTensor words(DType::kInt32, {20}, testkit::GuardSide::kBefore);
  host.plan = words;
  const auto call = [&](const Paged& a, const Execution& execution) {
    make_plan({group_of(a), a.cu_seqlens_q, a.kv_lens, 0, a.plan}, execution);
  };
  EXPECT_THROW(testkit::call_on_gpu(testkit::main_lane(), host, call), InvalidArgument);
  EXPECT_TRUE(words.surroundings_intact());
}

}  // namespace
}  // namespace hpcattn
