// SPDX-License-Identifier: Apache-2.0
// The device code that puts a step into a graph's memory, run on the CPU word by word.
#include "src/cuda/step.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/step/word.h"
#include "src/cuda/views.h"

namespace hpcattn::cuda {
namespace {

using Ints = std::vector<std::int32_t>;
using Longs = std::vector<std::int64_t>;

constexpr std::int32_t kPoison = 0x7f7f7f7f;

/// Memory for 4 requests, 3 pages each and 7 tokens, with a word of poison behind each part.
struct GraphMemory {
  Ints offsets = Ints(6, kPoison);
  Ints prefill = Ints(6, kPoison);
  Ints kv_lens = Ints(5, kPoison);
  Ints pages = Ints(13, kPoison);
  Longs slots = Longs(8, kPoison);

  void add_to(StepParams& p) {
    p.to_cu_seqlens_q = offsets.data();
    p.to_prefill = prefill.data();
    p.to_kv_lens = kv_lens.data();
    p.to_page_table = pages.data();
    p.to_slots = slots.data();
    p.offsets = 5;
    p.requests = 4;
    p.columns = 3;
    p.slot_capacity = 7;
  }
};

void run(const StepParams& p) {
  for (std::int64_t i = 0; i < num_step_words(p); ++i) write_step_word(p, i);
}

TEST(StepDeviceCode, FillsWhatTheStepLeavesFree) {
  Ints cu{0, 1, 2, 6};
  Ints lens{9, 17, 20};
  Ints pages{3, 1, 99, 5, 6, 99, 7, 8, 99};  // rows of 3, of which 2 are given
  Ints slots{25, 8, 12, 13, 14, 15};
  StepParams p;
  p.cu_seqlens_q = index_view(Tensor::contiguous(cu.data(), DType::kInt32, {4}));
  p.kv_lens = index_view(Tensor::contiguous(lens.data(), DType::kInt32, {3}));
  const Tensor table = Tensor::contiguous(pages.data(), DType::kInt32, {3, 3});
  p.page_table = index_view(table.slice(1, 0, 2));
  p.slots = index_view(Tensor::contiguous(slots.data(), DType::kInt32, {6}));
  p.num_requests = 3;
  p.num_columns = 2;
  p.num_slots = 6;
  p.num_decodes = 2;
  GraphMemory to;
  to.add_to(p);
  p.prefill_offsets = 3;  // the third request and the free one
  run(p);
  EXPECT_EQ(to.offsets, (Ints{0, 1, 2, 6, 6, kPoison}));
  EXPECT_EQ(to.prefill, (Ints{0, 4, 4, kPoison, kPoison, kPoison}));
  EXPECT_EQ(to.kv_lens, (Ints{9, 17, 20, 0, kPoison}));
  EXPECT_EQ(to.pages, (Ints{3, 1, -1, 5, 6, -1, 7, 8, -1, -1, -1, -1, kPoison}));
  EXPECT_EQ(to.slots, (Longs{25, 8, 12, 13, 14, 15, -1, kPoison}));
}

TEST(StepDeviceCode, AnEmptyStepIsAllPadding) {
  Ints cu{0};
  StepParams p;
  p.cu_seqlens_q = index_view(Tensor::contiguous(cu.data(), DType::kInt32, {1}));
  GraphMemory to;
  to.add_to(p);
  run(p);
  EXPECT_EQ(to.offsets, (Ints{0, 0, 0, 0, 0, kPoison}));
  EXPECT_EQ(to.kv_lens, (Ints{0, 0, 0, 0, kPoison}));
  EXPECT_EQ(to.pages, (Ints{-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, kPoison}));
  EXPECT_EQ(to.slots, (Longs{-1, -1, -1, -1, -1, -1, -1, kPoison}));
}

TEST(StepDeviceCode, LongSlotsStridesAndATableThatIsTooWide) {
  Ints cu{0, 7, 1, 7, 2};  // every second
  Ints lens{4, 7, 5};
  Ints pages(8, 4);
  Longs slots{1LL << 40, -1};
  StepParams p;
  const std::int64_t sizes[] = {3};
  const std::int64_t strides[] = {2};
  p.cu_seqlens_q = index_view(Tensor(cu.data(), DType::kInt32, sizes, strides));
  const std::int64_t two[] = {2};
  p.kv_lens = index_view(Tensor(lens.data(), DType::kInt32, two, strides));
  p.page_table = index_view(Tensor::contiguous(pages.data(), DType::kInt32, {2, 4}));
  p.slots = index_view(Tensor::contiguous(slots.data(), DType::kInt64, {2}));
  p.num_requests = 2;
  p.num_columns = 4;
  p.num_slots = 2;
  GraphMemory to;
  to.add_to(p);
  run(p);
  EXPECT_EQ(to.offsets, (Ints{0, 1, 2, 2, 2, kPoison}));
  EXPECT_EQ(to.kv_lens, (Ints{4, 5, 0, 0, kPoison}));
  EXPECT_EQ(to.pages, (Ints{4, 4, 4, 4, 4, 4, -1, -1, -1, -1, -1, -1, kPoison}));
  EXPECT_EQ(to.slots[0], 1LL << 40);
  EXPECT_EQ(to.slots[1], -1);
}

TEST(StepVariant, ThereIsOne) {
  const std::vector<KernelVariant> variants = all_step_variants();
  ASSERT_EQ(variants.size(), 1U);
  EXPECT_EQ(variants[0].threads, kStepThreads);
  EXPECT_NE(variants[0].source.find("hpcattn_kernel"), std::string::npos);
}

}  // namespace
}  // namespace hpcattn::cuda
