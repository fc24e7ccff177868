// SPDX-License-Identifier: Apache-2.0
#include "hpcattn/backend/step_workspace.h"

#include <gtest/gtest.h>

#include "hpcattn/error.h"

namespace hpcattn {
namespace {

struct Scales {
  explicit Scales(std::int64_t slots) : memory(std::size_t(slots * 16 * 8)), num_slots(slots) {}
  Tensor tensor() { return Tensor::contiguous(memory.data(), DType::kFloat32, {num_slots, 16, 8}); }
  std::vector<float> memory;
  std::int64_t num_slots;
};

template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(StepWorkspaceTest, ResultIsTakenOnceByItsLayerInItsStep) {
  StepWorkspace workspace;
  const std::uint64_t step = workspace.begin_step();
  workspace.put("layers.0", step, {.kv_written = true, .num_tokens = 3});
  EXPECT_FALSE(workspace.take("layers.1", step));
  ASSERT_TRUE(workspace.peek("layers.0", step));
  const auto result = workspace.take("layers.0", step);
  ASSERT_TRUE(result);
  EXPECT_TRUE(result->kv_written);
  EXPECT_EQ(result->num_tokens, 3);
  EXPECT_FALSE(workspace.take("layers.0", step));
}

TEST(StepWorkspaceTest, NothingOutlivesItsStep) {
  StepWorkspace workspace;
  const std::uint64_t first = workspace.begin_step();
  workspace.put("layers.0", first, {.kv_written = true});
  const std::uint64_t second = workspace.begin_step();
  EXPECT_FALSE(workspace.take("layers.0", second));
  EXPECT_NE(error_of([&] { workspace.take("layers.0", first); }).find("workspace is at step 2"),
            std::string::npos);
  EXPECT_NE(error_of([&] { workspace.put("layers.0", first, {}); }).find("put for step 1"),
            std::string::npos);
}

TEST(StepWorkspaceTest, LayersThatOverlapHaveSlotsOfTheirOwn) {
  Scales scales(2);
  StepWorkspace workspace(scales.tensor());
  const std::uint64_t step = workspace.begin_step();
  const Tensor a = workspace.reserve_q_scale("a", step, 5, 4);
  const Tensor b = workspace.reserve_q_scale("b", step, 16, 8);
  EXPECT_EQ(to_string(a), "float32[5, 4] on cpu");
  EXPECT_TRUE(a.is_contiguous());
  EXPECT_EQ(a.data(), scales.memory.data());
  EXPECT_EQ(b.data(), scales.memory.data() + 16 * 8);
  EXPECT_NE(error_of([&] {
              workspace.reserve_q_scale("c", step, 1, 1);
            }).find("all 2 slots of q_scales taken"),
            std::string::npos);
  workspace.put("a", step, {.q_scale = a});
  EXPECT_TRUE(workspace.take("a", step));
  EXPECT_EQ(workspace.reserve_q_scale("c", step, 1, 1).data(), a.data());
}

TEST(StepWorkspaceTest, AddressesAreTheSameInEveryStep) {
  Scales scales(1);
  StepWorkspace workspace(scales.tensor());
  for (int i = 0; i < 3; ++i) {
    const std::uint64_t step = workspace.begin_step();
    for (const char* layer : {"a", "b"}) {
      const Tensor room = workspace.reserve_q_scale(layer, step, 3, 8);
      EXPECT_EQ(room.data(), scales.memory.data());
      workspace.put(layer, step, {.q_scale = room});
      workspace.take(layer, step);
    }
  }
}

TEST(StepWorkspaceTest, AFailedPrologueMayTryAgain) {
  Scales scales(1);
  StepWorkspace workspace(scales.tensor());
  const std::uint64_t step = workspace.begin_step();
  const Tensor first = workspace.reserve_q_scale("a", step, 3, 8);
  const Tensor again = workspace.reserve_q_scale("a", step, 4, 8);
  EXPECT_EQ(first.data(), again.data());
}

TEST(StepWorkspaceTest, Refusals) {
  Scales scales(1);
  StepWorkspace without;
  EXPECT_NE(error_of([&] { without.reserve_q_scale("a", 0, 1, 1); }).find("was made without"),
            std::string::npos);
  StepWorkspace workspace(scales.tensor());
  EXPECT_NE(error_of([&] { workspace.reserve_q_scale("a", 0, 17, 8); }).find("[17, 8]"),
            std::string::npos);
  EXPECT_NE(error_of([&] { workspace.reserve_q_scale("a", 0, 16, 9); }).find("[16, 9]"),
            std::string::npos);
  workspace.put("a", 0, {});
  EXPECT_NE(error_of([&] { workspace.put("a", 0, {}); }).find("waits for its attention"),
            std::string::npos);
  EXPECT_NE(
      error_of([&] { workspace.reserve_q_scale("a", 0, 1, 1); }).find("waits for its attention"),
      std::string::npos);
  EXPECT_THROW(StepWorkspace(Tensor{}), InvalidArgument);
  EXPECT_THROW(StepWorkspace(Tensor::contiguous(scales.memory.data(), DType::kInt32, {1, 16, 8})),
               InvalidArgument);
  EXPECT_THROW(StepWorkspace(scales.tensor().slice(2, 0, 4)), InvalidArgument);
}

}  // namespace
}  // namespace hpcattn
