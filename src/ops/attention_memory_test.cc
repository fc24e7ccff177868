// SPDX-License-Identifier: Apache-2.0
// Attention over tensors of odd strides, and over offsets past 2^31 elements.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>

#include "src/cpu/reference/numbers.h"
#include "src/testing/attention_case_list.h"
#include "src/testing/attention_check.h"
#include "src/testing/execution.h"

namespace hpcattn {
namespace {

using testkit::AttentionBatch;
using testkit::AttentionCase;
using testkit::GuardedBuffer;
using testkit::GuardedTensor;
using testkit::GuardSide;

/// The same numbers with `factor` times the stride in each dim (but the last one of q, K and V);
/// between them lies NaN, or -1.
struct Spread {
  Spread(const Tensor& from, std::int64_t factor) {
    std::vector<std::int64_t> sizes(from.sizes().begin(), from.sizes().end());
    const std::size_t dims = sizes.size() < 3 ? sizes.size() : sizes.size() - 1;
    for (std::size_t dim = 0; dim < dims; ++dim) sizes[dim] *= factor;
    memory = GuardedTensor(from.dtype(), sizes);
    std::vector<std::int64_t> strides(memory.tensor().strides().begin(),
                                      memory.tensor().strides().end());
    for (std::size_t dim = 0; dim < dims; ++dim) strides[dim] *= factor;
    view = Tensor(memory.tensor().data(), from.dtype(), from.sizes(), strides);
    const auto width = static_cast<std::size_t>(size_bytes(from.dtype()));
    testkit::for_each_index(from, [&](const std::vector<std::int64_t>& index, std::int64_t) {
      std::memcpy(view.data_as<char>() + std::size_t(testkit::offset_of(view, index)) * width,
                  from.data_as<char>() + std::size_t(testkit::offset_of(from, index)) * width,
                  width);
    });
  }
  GuardedTensor memory;
  Tensor view;
};

/// Elements that are no longer NaN.
std::int64_t num_written(const Tensor& tensor) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
    count += std::isnan(tensor.data_as<float>()[i]) ? 0 : 1;
  }
  return count;
}

TEST(AttentionMemory, EveryInputMayHaveGaps) {
  for (const testkit::DTypes& dtypes :
       {testkit::all_dtypes()[0], testkit::all_dtypes()[12], testkit::all_dtypes()[22]}) {
    AttentionCase c;
    c.q_lens = {1, 14, 3};
    c.kv_lens = {70, 30, 66};
    c.alibi = true;
    c.sinks = DType::kBFloat16;
    testkit::set_dtypes(c, dtypes);
    AttentionBatch batch(c);
    const auto spread_options = [](AttentionOptions& options, std::vector<Spread>& owners) {
      for (Tensor* tensor : {&options.alibi_slopes, &options.sinks, &options.q_scale,
                             &options.k_scale, &options.v_scale}) {
        if (tensor->defined()) *tensor = owners.emplace_back(*tensor, 3).view;
      }
    };
    std::vector<Spread> owners;
    PagedAttentionArgs paged = batch.paged();
    const reference::AttentionResult want = reference::attention(paged);
    spread_options(paged.options, owners);
    for (Tensor* tensor : {&paged.q, &paged.page_table, &paged.cu_seqlens_q, &paged.kv_lens}) {
      *tensor = owners.emplace_back(*tensor, 3).view;
    }
    const Spread lse(paged.lse, 2);
    paged.lse = lse.view;
    paged_attention(paged, testkit::with_threads(2));
    EXPECT_EQ(num_written(lse.memory), paged.lse.num_elements());
    EXPECT_EQ(testkit::check_outputs(paged.out, paged.lse, paged.options, want, "paged, gaps"), "");

    PackedAttentionArgs packed = batch.packed();
    batch.reset_outputs();
    spread_options(packed.options, owners);
    for (Tensor* tensor :
         {&packed.q, &packed.k, &packed.v, &packed.cu_seqlens_q, &packed.cu_seqlens_k}) {
      *tensor = owners.emplace_back(*tensor, 3).view;
    }
    packed_attention(packed, testkit::with_threads(2));
    EXPECT_EQ(testkit::check_outputs(packed.out, packed.lse, packed.options, want, "packed, gaps"),
              "");
    EXPECT_EQ(batch.check_surroundings(), "");
  }
}

TEST(AttentionMemory, HeadsMayComeBeforeTokens) {
  AttentionCase c;
  c.q_lens = {1, 14};
  c.kv_lens = {70, 30};
  c.padding_tokens = 0;
  AttentionBatch batch(c);
  PackedAttentionArgs args = batch.packed();
  const reference::AttentionResult want = reference::attention(args);
  std::vector<GuardedTensor> owners;
  const auto transpose = [&](Tensor& tensor, bool copy) {
    const std::array<std::int64_t, 3> strides = {tensor.size(2), tensor.size(0) * tensor.size(2),
                                                 1};
    GuardedTensor& memory = owners.emplace_back(
        tensor.dtype(), std::vector<std::int64_t>{tensor.size(1), tensor.size(0), tensor.size(2)});
    const Tensor view(memory.tensor().data(), tensor.dtype(), tensor.sizes(), strides);
    testkit::for_each_index(tensor, [&](const std::vector<std::int64_t>& i, std::int64_t) {
      if (copy) {
        reference::set_element(view, {i[0], i[1], i[2]},
                               reference::element(tensor, {i[0], i[1], i[2]}));
      }
    });
    tensor = view;
  };
  transpose(args.q, true);
  transpose(args.k, true);
  transpose(args.v, true);
  transpose(args.out, false);
  packed_attention(args);
  EXPECT_EQ(testkit::check_outputs(args.out, args.lse, args.options, want, "heads first"), "");
}

TEST(AttentionMemory, QKAndVOfOnePackedProjection) {
  testkit::Rng rng(4);
  GuardedTensor qkv(DType::kBFloat16, {30, 4 + 2 + 2, 64});
  qkv.fill_normal(rng);
  const GuardedTensor ends = GuardedTensor::of_ints(std::vector<std::int32_t>{0, 7, 30});
  const GuardedTensor out(DType::kBFloat16, {30, 4, 64});
  PackedAttentionArgs args;
  args.q = qkv.tensor().slice(1, 0, 4);
  args.k = qkv.tensor().slice(1, 4, 2);
  args.v = qkv.tensor().slice(1, 6, 2);
  args.cu_seqlens_q = ends;
  args.cu_seqlens_k = ends;
  args.out = out;
  args.options.scale = 0.125;
  packed_attention(args);
  EXPECT_EQ(testkit::check_outputs(args.out, {}, args.options, reference::attention(args), "qkv"),
            "");
}

TEST(AttentionMemory, OutMayBeAnotherSliceOfTheTensorThatHoldsQ) {
  testkit::Rng rng(8);
  GuardedTensor both(DType::kFloat32, {9, 2, 4, 64});  // token, q or out, head, dim
  GuardedTensor kv(DType::kFloat32, {30, 2, 64});
  both.fill_normal(rng);
  kv.fill_normal(rng);
  const GuardedTensor ends_q = GuardedTensor::of_ints(std::vector<std::int32_t>{0, 9});
  const GuardedTensor ends_k = GuardedTensor::of_ints(std::vector<std::int32_t>{0, 30});
  PackedAttentionArgs args;
  args.q = both.tensor().select(1, 0);
  args.out = both.tensor().select(1, 1);
  args.k = kv;
  args.v = kv;  // one tensor for both, as MQA with a shared latent has
  args.cu_seqlens_q = ends_q;
  args.cu_seqlens_k = ends_k;
  args.options.scale = 0.125;
  packed_attention(args);
  EXPECT_EQ(
      testkit::check_outputs(args.out, {}, args.options, reference::attention(args), "slices"), "");
}

/// A pool of many GiB, of which only the pages in use exist.
class SparsePool {
 public:
  SparsePool(DType dtype, std::int64_t num_pages, bool heads_first)
      : memory_(static_cast<std::size_t>(num_pages * kPageElements * size_bytes(dtype)),
                GuardSide::kAfter, true) {
    const std::array<std::int64_t, 4> sizes = {num_pages, 16, 2, 128};
    const std::array<std::int64_t, 4> nhd = {kPageElements, 256, 128, 1};
    const std::array<std::int64_t, 4> hnd = {kPageElements, 128, 16 * 128, 1};
    cache = Tensor(memory_.data(), dtype, sizes, heads_first ? hnd : nhd);
  }
  Tensor cache;

 private:
  static constexpr std::int64_t kPageElements = 16 * 2 * 128;
  GuardedBuffer memory_;
};

TEST(AttentionMemory, PagesPastTwoToThe31Elements) {
  // 2^31 elements are 524288 of these pages; ids on both sides of it, of 2^32 and at the end.
  const std::vector<std::int32_t> pages = {524287, 524288, 1048575, 1048576, 1199999, 3};
  for (const testkit::DTypes& dtypes :
       {testkit::all_dtypes()[0], testkit::all_dtypes()[12], testkit::all_dtypes()[14]}) {
    for (std::int32_t q_len : {1, 30}) {
      testkit::Rng rng(5);
      const SparsePool k_pool(dtypes.kv, 1'200'000, false);
      const SparsePool v_pool(dtypes.kv, 1'200'000, true);
      for (std::int32_t page : pages) {
        for (const Tensor& cache : {k_pool.cache, v_pool.cache}) {
          testkit::for_each_index(
              cache.select(0, page), [&](const std::vector<std::int64_t>& i, std::int64_t) {
                reference::set_element(cache, {page, i[0], i[1], i[2]}, rng.normal());
              });
        }
      }
      GuardedTensor q(dtypes.q, {q_len, 4, 128});
      q.fill_normal(rng);
      const GuardedTensor out(dtypes.out, {q_len, 4, 128});
      const GuardedTensor ends = GuardedTensor::of_ints(std::vector<std::int32_t>{0, q_len});
      const GuardedTensor lens = GuardedTensor::of_ints(std::vector<std::int32_t>{94});
      const GuardedTensor table = GuardedTensor::of_ints(pages);
      const GuardedTensor scale = GuardedTensor::of_floats({0.7});
      PagedAttentionArgs args;
      args.q = q;
      args.k_cache = k_pool.cache;
      args.v_cache = v_pool.cache;
      args.page_table = Tensor::contiguous(table.tensor().data(), DType::kInt32, {1, 6});
      args.cu_seqlens_q = ends;
      args.kv_lens = lens;
      args.out = out;
      args.options.scale = 0.1;
      if (is_fp8(dtypes.kv)) args.options.k_scale = args.options.v_scale = scale;
      paged_attention(args);
      EXPECT_EQ(testkit::check_outputs(args.out, {}, args.options, reference::attention(args),
                                       std::string(name(dtypes.kv))),
                "");
    }
  }
}

TEST(AttentionMemory, RowsOfQKVAndOutPastTwoToThe31Elements) {
  const std::int64_t token_stride = (std::int64_t{1} << 30) + 4096;
  const std::array<std::int64_t, 3> sizes = {4, 2, 64};
  const std::array<std::int64_t, 3> strides = {token_stride, 64, 1};
  const auto bytes = static_cast<std::size_t>((3 * token_stride + 128) * 2);
  std::vector<GuardedBuffer> buffers;
  std::vector<Tensor> tensors;
  testkit::Rng rng(6);
  for (int i = 0; i < 4; ++i) {
    buffers.emplace_back(bytes, GuardSide::kAfter, true);
    tensors.emplace_back(buffers.back().data(), DType::kBFloat16, sizes, strides);
    testkit::for_each_index(tensors.back(), [&](const std::vector<std::int64_t>& at, std::int64_t) {
      reference::set_element(tensors.back(), {at[0], at[1], at[2]},
                             i == 3 ? std::nan("") : rng.normal());
    });
  }
  const GuardedTensor ends = GuardedTensor::of_ints(std::vector<std::int32_t>{0, 4});
  PackedAttentionArgs args;
  args.q = tensors[0];
  args.k = tensors[1];
  args.v = tensors[2];
  args.out = tensors[3];
  args.cu_seqlens_q = ends;
  args.cu_seqlens_k = ends;
  args.options.scale = 0.125;
  packed_attention(args);
  EXPECT_EQ(
      testkit::check_outputs(args.out, {}, args.options, reference::attention(args), "far rows"),
      "");
}

}  // namespace
}  // namespace hpcattn
