// SPDX-License-Identifier: Apache-2.0
#include "hpcattn/merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "hpcattn/error.h"
#include "src/cpu/reference/attention.h"
#include "src/cpu/reference/merge.h"
#include "src/cpu/reference/numbers.h"
#include "src/testing/attention_case.h"
#include "src/testing/compare.h"
#include "src/testing/execution.h"
#include "src/testing/merge_case.h"

namespace hpcattn {
namespace {

using testkit::GuardedTensor;
using testkit::MergeBatch;
using testkit::MergeCase;
using testkit::Rng;
using testkit::run_and_check;

TEST(MergePartials, EveryDtypeShapeAndStride) {
  std::uint64_t seed = 1;
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (DType out_dtype : {dtype, DType::kFloat32}) {
      for (std::int64_t head_dim : {1, 7, 64, 80, 256}) {
        for (std::int64_t num_partials : {1, 2, 3, 9}) {
          MergeCase c;
          c.seed = seed++;
          c.dtype = dtype;
          c.out_dtype = out_dtype;
          c.sizes = {static_cast<std::int64_t>(1 + seed % 6),
                     static_cast<std::int64_t>(1 + seed % 5), head_dim};
          c.num_partials = num_partials;
          c.row_gap = seed % 3 == 0 ? 3 : 0;
          c.with_lse = seed % 4 != 0;
          const std::string report = run_and_check(c);
          EXPECT_TRUE(report.empty()) << report;
        }
      }
    }
  }
}

TEST(MergePartials, LsesFarApart) {
  for (double deviation : {100.0, 1e6, 1e30}) {
    MergeCase c;
    c.lse_deviation = deviation;
    c.num_partials = 4;
    const std::string report = run_and_check(c);
    EXPECT_TRUE(report.empty()) << report;
  }
}

TEST(MergePartials, AllAbsentGivesZeroAndMinusInfinity) {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    MergeCase c;
    c.dtype = c.out_dtype = dtype;
    c.absent_share = 1.0;
    const std::string report = run_and_check(c);
    EXPECT_TRUE(report.empty()) << report;
  }
}

TEST(MergePartials, OnePartialIsReturnedBitForBit) {
  MergeCase c;
  c.num_partials = 1;
  c.absent_share = 0.0;
  const MergeBatch batch(c);
  merge_partials(batch.args());
  EXPECT_EQ(testkit::compare_bits(batch.out, batch.partials[0], "out"), "");
  EXPECT_EQ(testkit::compare_bits(batch.lse, batch.lses[0], "lse"), "");
}

TEST(MergePartials, OutAndLseMayBeOneOfTheInputs) {
  for (std::size_t which : {0U, 1U, 2U}) {
    MergeCase c;
    c.num_partials = 3;
    c.absent_share = 0.3;
    MergeBatch apart(c);
    merge_partials(apart.args());
    MergeBatch alias(c);
    MergeArgs args = alias.args();
    args.out = args.partials[which];
    args.lse = args.lses[which];
    merge_partials(args);
    EXPECT_EQ(testkit::compare_bits(args.out, apart.out, "out"), "");
    EXPECT_EQ(testkit::compare_bits(args.lse, apart.lse, "lse"), "");
  }
}

TEST(MergePartials, SlicesOfOneTensorMayBeMergedIntoOneOfThem) {
  Rng rng(3);
  GuardedTensor all(DType::kFloat32, {4, 3, 2, 64});  // token, partial, head, dim
  GuardedTensor all_lse(DType::kFloat32, {4, 3, 2});
  all.fill_normal(rng);
  all_lse.fill_normal(rng);
  MergeArgs args;
  for (int s = 0; s < 3; ++s) {
    args.partials.push_back(all.tensor().select(1, s));
    args.lses.push_back(all_lse.tensor().select(1, s));
  }
  args.out = args.partials[1];
  const reference::MergeResult want = reference::merge_partials(args);
  merge_partials(args);
  EXPECT_EQ(testkit::check_merge(args.out, args.lse, want, "slices"), "");
}

TEST(MergePartials, ThreadsAndTheCallersPoolChangeNoBit) {
  MergeCase c;
  c.sizes = {200, 8, 128};
  c.num_partials = 3;
  MergeBatch batch(c);
  merge_partials(batch.args(), testkit::with_threads(1));
  const std::vector<std::uint8_t> alone = batch.out.bytes();
  int calls = 0;
  Execution own_pool = testkit::with_threads(3);
  own_pool.parallel_for = [&](int n, const std::function<void(int)>& body) {
    for (int i = n; i-- > 0;) body(i);
    ++calls;
  };
  for (const Execution& execution :
       {testkit::with_threads(2), testkit::with_threads(5), own_pool}) {
    batch.out.poison();
    merge_partials(batch.args(), execution);
    EXPECT_EQ(batch.out.bytes(), alone);
  }
  EXPECT_EQ(calls, 1);
}

TEST(MergePartials, EmptyTensors) {
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{0, 4, 64}, {3, 0, 64}, {3, 4, 0}}) {
    MergeCase c;
    c.sizes = sizes;
    const std::string report = run_and_check(c);
    EXPECT_TRUE(report.empty()) << report;
  }
}

TEST(MergePartials, PartsOfAttentionMakeTheWhole) {
  testkit::AttentionCase c;
  c.q_lens = {4};
  c.kv_lens = {50};
  c.causal = false;
  c.padding_tokens = 0;
  testkit::AttentionBatch batch(c);
  PackedAttentionArgs whole = batch.packed();
  const reference::AttentionResult want = reference::attention(whole);
  std::vector<GuardedTensor> outs, lses;
  MergeArgs args;
  for (const auto& [begin, length] : {std::pair{0, 13}, std::pair{13, 0}, std::pair{13, 37}}) {
    PackedAttentionArgs part = whole;
    part.k = whole.k.slice(0, begin, length);
    part.v = whole.v.slice(0, begin, length);
    const GuardedTensor cu = GuardedTensor::of_ints(std::vector<std::int32_t>{0, length});
    part.cu_seqlens_k = cu;
    const reference::AttentionResult result = reference::attention(part);
    GuardedTensor& out = outs.emplace_back(DType::kFloat32, std::vector<std::int64_t>{4, 4, 64});
    GuardedTensor& lse = lses.emplace_back(DType::kFloat32, std::vector<std::int64_t>{4, 4});
    for (std::size_t i = 0; i < result.out.size(); ++i) {
      out.tensor().data_as<float>()[i] = static_cast<float>(result.out[i]);
    }
    for (std::size_t i = 0; i < result.lse.size(); ++i) {
      lse.tensor().data_as<float>()[i] = static_cast<float>(result.lse[i]);
    }
    args.partials.push_back(out);
    args.lses.push_back(lse);
  }
  args.out = whole.out;
  args.lse = whole.lse;
  merge_partials(args);
  // The partials and their LSEs were rounded to float32 once each.
  const double u = reference::unit_roundoff(DType::kFloat32);
  std::vector<double> bound(want.out.size());
  for (std::size_t i = 0; i < bound.size(); ++i) bound[i] = 16.0 * u * want.out_magnitude[i];
  EXPECT_EQ(testkit::compare(whole.out, want.out, bound, "out"), "");
  EXPECT_EQ(
      testkit::compare(whole.lse, want.lse, std::vector<double>(want.lse.size(), 16.0 * u), "lse"),
      "");
}

/// Runs a call that must be refused with this text, and see that nothing was written.
template <typename Refusal>
void expect_refused(const MergeBatch& batch, const MergeArgs& args, const std::string& text) {
  const std::vector<std::uint8_t> out = batch.out.bytes();
  const std::vector<std::uint8_t> lse = batch.lse.bytes();
  try {
    merge_partials(args);
    FAIL() << "accepted, expected: " << text;
  } catch (const Refusal& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
  EXPECT_EQ(batch.out.bytes(), out);
  EXPECT_EQ(batch.lse.bytes(), lse);
}

TEST(MergePartialsBadInput, EachRefusalSaysWhatCameAndWhatIsExpected) {
  MergeCase c;
  c.num_partials = 2;
  c.sizes = {5, 3, 64};
  const MergeBatch batch(c);
  const GuardedTensor bf16(DType::kBFloat16, {5, 3, 64});
  const GuardedTensor ints(DType::kInt32, {5, 3, 64});
  const GuardedTensor wide(DType::kFloat32, {5, 3, 128});
  const Tensor& out = batch.out;
  const std::vector<std::int64_t> sizes = {5, 3, 64};
  const std::vector<std::int64_t> shared = {192, 0, 1};
  const std::vector<std::int64_t> column = {384, 128, 2};
  struct Row {
    const char* text;
    std::function<void(MergeArgs&)> spoil;
  };
  const std::vector<Row> rows = {
      {"no partials are given", [](MergeArgs& a) { a.partials.clear(), a.lses.clear(); }},
      {"1 lses and 2 partials", [](MergeArgs& a) { a.lses.pop_back(); }},
      {"partials[0] is not given", [](MergeArgs& a) { a.partials[0] = {}; }},
      {"partials[0] is float32[5, 64] on cpu, expected shape [any, any, any]",
       [](MergeArgs& a) { a.partials[0] = a.partials[0].select(1, 0); }},
      {"partials[1] is float32[4, 3, 64] on cpu, expected shape [5, 3, 64]",
       [](MergeArgs& a) { a.partials[1] = a.partials[1].slice(0, 0, 4); }},
      {"partials[1] has dtype bfloat16, expected float32 (as partials[0] has)",
       [&](MergeArgs& a) { a.partials[1] = bf16; }},
      {"partials[0] has dtype int32", [&](MergeArgs& a) { a.partials[0] = ints; }},
      {"partials[1] has stride 2 in its last dim",
       [&](MergeArgs& a) {
         a.partials[1] = Tensor(wide.tensor().data(), DType::kFloat32, sizes, column);
       }},
      {"lses[1] is float32[5, 2] on cpu, expected shape [5, 3]",
       [](MergeArgs& a) { a.lses[1] = a.lses[1].slice(1, 0, 2); }},
      {"lses[0] has dtype int32", [&](MergeArgs& a) { a.lses[0] = ints.tensor().select(2, 0); }},
      {"out is not given", [](MergeArgs& a) { a.out = {}; }},
      {"out is float32[5, 3, 32] on cpu, expected shape [5, 3, 64]",
       [](MergeArgs& a) { a.out = a.out.slice(2, 0, 32); }},
      {"out has dtype bfloat16, expected float32", [&](MergeArgs& a) { a.out = bf16; }},
      {"out is written and has stride 0",
       [&](MergeArgs& a) { a.out = Tensor(out.data(), DType::kFloat32, sizes, shared); }},
      {"out shares memory with partials[1] without being the same view",
       [](MergeArgs& a) {
         a.out = Tensor(a.partials[1].data_as<float>() - 64, DType::kFloat32, a.out.sizes(),
                        a.out.strides());
       }},
      {"out shares memory with lses[0]",
       [](MergeArgs& a) {
         a.out = Tensor(a.lses[0].data(), DType::kFloat32, a.out.sizes(), a.out.strides());
       }},
      {"lse is float32[5] on cpu, expected shape [5, 3]",
       [](MergeArgs& a) { a.lse = a.lse.select(1, 0); }},
      {"lse shares memory with partials[0]",
       [](MergeArgs& a) { a.lse = a.partials[0].select(2, 0); }},
      {"lse and out share memory", [](MergeArgs& a) { a.lse = a.out.select(2, 0); }},
      {"partials[1] is on cuda:0, expected cpu",
       [](MergeArgs& a) {
         a.partials[1] = Tensor(a.partials[1].data(), DType::kFloat32, a.partials[1].sizes(),
                                a.partials[1].strides(), {DeviceType::kCuda, 0});
       }},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.text);
    MergeArgs args = batch.args();
    row.spoil(args);
    expect_refused<InvalidArgument>(batch, args, row.text);
  }
}

TEST(MergePartialsBadInput, ADeviceThatIsNotThereIsTold) {
  const MergeBatch batch(MergeCase{});
  MergeArgs args = batch.args();
  const auto move = [](Tensor& t) {
    t = Tensor(t.data(), t.dtype(), t.sizes(), t.strides(), {DeviceType::kCuda, 1000});
  };
  for (Tensor& t : args.partials) move(t);
  for (Tensor& t : args.lses) move(t);
  move(args.out);
  move(args.lse);
  expect_refused<DeviceError>(batch, args, "cuda");
}

}  // namespace
}  // namespace hpcattn
