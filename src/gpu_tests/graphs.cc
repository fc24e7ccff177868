// SPDX-License-Identifier: Apache-2.0
// CUDA graphs: captured with some lengths and replayed with others.
#include <gtest/gtest.h>

#include "hpcattn/counters.h"
#include "src/gpu_tests/attention_run.h"
#include "src/gpu_tests/expect.h"

namespace hpcattn {
namespace {

using testkit::AttentionBatch;
using testkit::AttentionCase;
using testkit::DTypes;
using testkit::GpuGraph;
using testkit::GpuLane;
using testkit::GuardedTensor;

struct Lengths {
  std::vector<std::int32_t> q;
  std::vector<std::int32_t> kv;
};

std::vector<std::int32_t> ends_of(const std::vector<std::int32_t>& lengths) {
  std::vector<std::int32_t> ends = {0};
  for (std::int32_t length : lengths) ends.push_back(ends.back() + length);
  return ends;
}

/// The batch with other lengths, none longer than its own: what its pages hold stays, rows past the
/// last request are padding.
struct Step {
  Step(const AttentionBatch& batch, const Lengths& lengths)
      : ends(GuardedTensor::of_ints(ends_of(lengths.q))),
        lens(GuardedTensor::of_ints(lengths.kv)),
        args(batch.paged()) {
    args.cu_seqlens_q = ends;
    args.kv_lens = lens;
    want = reference::attention(args);
  }
  GuardedTensor ends, lens;
  PagedAttentionArgs args;
  reference::AttentionResult want;
};

/// Captures the first step's call and replays it for each.
std::string capture_and_replay(GpuLane& lane, const AttentionCase& c,
                               const std::vector<Lengths>& lengths, bool plan_given) {
  AttentionBatch batch(c);
  std::vector<Step> steps;
  for (const Lengths& some : lengths) steps.emplace_back(batch, some);
  PagedAttentionArgs host = batch.paged();
  // The longest is what the capacity is named for; capture sees the shortest.
  const GuardedTensor words = testkit::plan_memory(group_of(host), host.q.size(0), host.kv_lens);
  host.plan = words;
  std::string report;
  const auto replay_all = [&](const PagedAttentionArgs& on_gpu, const Execution& execution) {
    PagedAttentionArgs a = on_gpu;
    if (!plan_given) a.plan = {};
    const auto call = [&](const Execution& e) {
      if (plan_given) make_plan({group_of(a), a.cu_seqlens_q, a.kv_lens, 0, a.plan}, e);
      paged_attention(a, e);
    };
    const auto set_lengths = [&](const Step& step) {
      lane.stream.upload(a.cu_seqlens_q.data(), step.ends.buffer().data(),
                         step.ends.buffer().size());
      lane.stream.upload(a.kv_lens.data(), step.lens.buffer().data(), step.lens.buffer().size());
    };
    set_lengths(steps.front());
    call(execution);  // compiles what is not compiled yet
    lane.stream.wait();
    const GpuGraph graph(lane.stream, call);
    for (std::size_t i = 0; i < steps.size() && report.empty(); ++i) {
      const auto judge = [&](const std::string& what, const auto& compute) {
        lane.stream.fill(a.out.data(), 0xff, batch.out().buffer().size());
        lane.stream.fill(a.lse.data(), 0xff, batch.lse().buffer().size());
        compute();
        lane.stream.download(batch.out().buffer().data(), a.out.data(),
                             batch.out().buffer().size());
        lane.stream.download(batch.lse().buffer().data(), a.lse.data(),
                             batch.lse().buffer().size());
        report += testkit::check_outputs(
            batch.out(), batch.lse(), host.options, steps[i].want,
            what + std::to_string(i) + " of " + to_string(c),
            testkit::gpu_arithmetic(host.q, host.k_cache, host.cu_seqlens_q));
      };
      set_lengths(steps[i]);
      judge("replay ", [&] { graph.replay(lane.stream); });
      // The plan as it was left serves the next layer.
      if (plan_given) judge("next layer after replay ", [&] { paged_attention(a, execution); });
    }
    // As it was built, so that what comes back is.
    lane.stream.upload(a.cu_seqlens_q.data(), host.cu_seqlens_q.data(),
                       static_cast<std::size_t>(host.cu_seqlens_q.size(0) * 4));
    lane.stream.upload(a.kv_lens.data(), host.kv_lens.data(),
                       static_cast<std::size_t>(host.kv_lens.size(0) * 4));
  };
  const std::string around = testkit::call_on_gpu(lane, host, replay_all);
  if (report.empty()) report = around;
  return report.empty() ? batch.check_surroundings() : report;
}

struct GraphCase {
  DTypes dtypes;
  bool plan_given = true;
  bool decode = true;
};

TEST(GpuGraph, CapturedShortReplayedLong) {
  std::vector<GraphCase> cases;
  for (const DTypes& dtypes : {DTypes{DType::kBFloat16, DType::kBFloat16, DType::kBFloat16},
                               DTypes{DType::kFloat16, DType::kFloat16, DType::kFloat16},
                               DTypes{DType::kBFloat16, DType::kFloat8E4M3, DType::kBFloat16},
                               DTypes{DType::kFloat8E4M3, DType::kFloat8E4M3, DType::kBFloat16}}) {
    for (bool plan_given : {true, false}) {
      for (bool decode : {true, false}) cases.push_back({dtypes, plan_given, decode});
    }
  }
  testkit::expect_all_right(cases, [](GpuLane& lane, const GraphCase& g) {
    AttentionCase c;
    c.name = "graph";
    c.head_dim = 128;
    c.num_q_heads = 8;
    c.padding_tokens = 0;
    testkit::set_dtypes(c, g.dtypes);
    std::vector<Lengths> lengths;
    if (g.decode) {
      c.q_lens = {1, 1, 1, 1};
      c.kv_lens = {5000, 900, 64, 1300};
      lengths = {{{1, 1, 1, 1}, {1, 2, 3, 4}},
                 {{1, 1, 1, 1}, {5000, 900, 64, 1300}},
                 {{1, 0, 1, 0}, {700, 0, 33, 0}},
                 {{0, 0, 0, 0}, {0, 0, 0, 0}},
                 {{1, 1, 1, 1}, {17, 900, 1, 1299}}};
    } else {
      c.q_lens = {70, 30, 1, 2};
      c.kv_lens = {600, 900, 64, 400};
      lengths = {{{1, 1, 1, 1}, {1, 2, 3, 4}},
                 {{70, 30, 1, 2}, {600, 900, 64, 400}},
                 {{1, 99, 1, 2}, {600, 899, 1, 2}},
                 {{103, 0, 0, 0}, {333, 1, 0, 5}}};
    }
    return capture_and_replay(lane, c, lengths, g.plan_given);
  });
}

/// More tasks than ctas, so that ctas claim them.
TEST(GpuGraph, ClaimsAreGivenBackForTheNextLayer) {
  testkit::expect_all_right(std::vector<bool>{true, false}, [](GpuLane& lane, bool decode) {
    AttentionCase c;
    c.name = "claims";
    c.head_dim = 128;
    c.num_q_heads = 8;
    c.padding_tokens = 0;
    testkit::set_dtypes(c, {DType::kBFloat16, DType::kBFloat16, DType::kBFloat16});
    c.q_lens.assign(300, decode ? 1 : 12);
    c.kv_lens.assign(300, 30);
    const Lengths all{c.q_lens, c.kv_lens};
    return capture_and_replay(lane, c, {all, all}, true);
  });
}

/// The second call of a kind compiles nothing.
TEST(GpuGraph, NothingCompilesAfterTheFirstCall) {
  AttentionCase c;
  c.q_lens = {1, 30};
  c.kv_lens = {200, 60};
  testkit::set_dtypes(c, testkit::gpu_dtypes()[6]);
  AttentionBatch batch(c);
  const auto call = [&] {
    ASSERT_EQ(testkit::paged_on_gpu(testkit::main_lane(), batch.paged(), {.given = true}), "");
  };
  call();
  const std::int64_t compilations = counters()["compilations"];
  for (int i = 0; i < 3; ++i) call();
  EXPECT_EQ(counters()["compilations"], compilations);
}

}  // namespace
}  // namespace hpcattn
