// SPDX-License-Identifier: Apache-2.0
// Offsets past 2^31 and 2^32 elements, very many requests, very long ones.
#include <gtest/gtest.h>

#include <array>

#include "src/cpu/reference/numbers.h"
#include "src/cpu/reference/store.h"
#include "src/gpu_tests/attention_run.h"
#include "src/gpu_tests/expect.h"
#include "src/testing/rounded_check.h"
#include "src/testing/store_case.h"

namespace hpcattn {
namespace {

using testkit::AttentionCase;
using testkit::DeviceMemory;
using testkit::DTypes;
using testkit::GpuLane;
using testkit::GuardedBuffer;
using testkit::GuardedTensor;
using testkit::GuardSide;

constexpr Device kGpu{DeviceType::kCuda, 0};
constexpr DTypes kBf16 = {DType::kBFloat16, DType::kBFloat16, DType::kBFloat16};
constexpr DTypes kBf16Fp8 = {DType::kBFloat16, DType::kFloat8E4M3, DType::kBFloat16};

/// Many GiB of pages on the GPU, all NaN; of its twin on the host only the pages in use exist.
class FarPool {
 public:
  static constexpr std::int64_t kPageElements = std::int64_t{16} * 2 * 128;

  FarPool(const GpuLane& lane, DType dtype, std::int64_t num_pages, bool heads_first)
      : page_bytes_(static_cast<std::size_t>(kPageElements * size_bytes(dtype))),
        host_(static_cast<std::size_t>(num_pages) * page_bytes_, GuardSide::kAfter, true),
        memory_(static_cast<std::size_t>(num_pages) * page_bytes_) {
    const std::array<std::int64_t, 4> sizes = {num_pages, 16, 2, 128};
    const std::array<std::int64_t, 4> nhd = {kPageElements, 256, 128, 1};
    const std::array<std::int64_t, 4> hnd = {kPageElements, 128, std::int64_t{16} * 128, 1};
    on_host = Tensor(host_.data(), dtype, sizes, heads_first ? hnd : nhd);
    on_gpu = Tensor(memory_.data(), dtype, sizes, heads_first ? hnd : nhd, kGpu);
    lane.stream.fill(memory_.data(), GuardedBuffer::kUnwritten, memory_.size());
  }

  void upload(const GpuLane& lane, std::int64_t page) const {
    lane.stream.upload(gpu_page(page), page_of(page), page_bytes_);
  }
  void download(const GpuLane& lane, std::int64_t page) const {
    lane.stream.download(page_of(page), gpu_page(page), page_bytes_);
  }

  Tensor on_host, on_gpu;

 private:
  std::byte* page_of(std::int64_t page) const {
    return static_cast<std::byte*>(host_.data()) + static_cast<std::size_t>(page) * page_bytes_;
  }
  std::byte* gpu_page(std::int64_t page) const {
    return memory_.data() + static_cast<std::size_t>(page) * page_bytes_;
  }

  std::size_t page_bytes_;
  GuardedBuffer host_;
  DeviceMemory memory_;
};

bool has_room(std::size_t gigabytes) { return testkit::free_device_bytes() >> 30 >= gigabytes; }

TEST(GpuLimits, PagesPastTwoToThe31AndTwoToThe32Elements) {
  // 2^31 elements are 524288 of these pages; ids on both sides of it, of 2^32 and at the end.
  const std::vector<std::int32_t> pages = {524287, 524288, 1048575, 1048576, 1199999, 3};
  if (!has_room(22)) GTEST_SKIP() << "needs 22 GiB of free device memory";
  const GpuLane& lane = testkit::main_lane();
  for (const DTypes& dtypes : {kBf16, kBf16Fp8}) {
    const FarPool k_pool(lane, dtypes.kv, 1'200'000, false);
    const FarPool v_pool(lane, dtypes.kv, 1'200'000, true);
    testkit::Rng rng(5);
    for (std::int32_t page : pages) {
      for (const FarPool* pool : {&k_pool, &v_pool}) {
        testkit::for_each_index(
            pool->on_host.select(0, page), [&](const std::vector<std::int64_t>& i, std::int64_t) {
              reference::set_element(pool->on_host, {page, i[0], i[1], i[2]}, rng.normal());
            });
        pool->upload(lane, page);
      }
    }
    for (std::int32_t q_len : {1, 30}) {
      GuardedTensor q(dtypes.q, {q_len, 4, 128});
      q.fill_normal(rng);
      const GuardedTensor out(dtypes.out, {q_len, 4, 128});
      const GuardedTensor ends = GuardedTensor::of_ints(std::vector<std::int32_t>{0, q_len});
      const GuardedTensor lens = GuardedTensor::of_ints(std::vector<std::int32_t>{94});
      const GuardedTensor table = GuardedTensor::of_ints(pages);
      const GuardedTensor scale = GuardedTensor::of_floats({0.7});
      PagedAttentionArgs args;
      args.q = q;
      args.page_table = Tensor::contiguous(table.tensor().data(), DType::kInt32, {1, 6});
      args.cu_seqlens_q = ends;
      args.kv_lens = lens;
      args.out = out;
      args.options.scale = 0.1;
      if (is_fp8(dtypes.kv)) args.options.k_scale = args.options.v_scale = scale;
      const auto call = [&](PagedAttentionArgs a, const Execution& execution) {
        a.k_cache = k_pool.on_gpu;
        a.v_cache = v_pool.on_gpu;
        paged_attention(a, execution);
      };
      EXPECT_EQ(testkit::call_on_gpu(testkit::main_lane(), args, call), "");
      args.k_cache = k_pool.on_host;
      args.v_cache = v_pool.on_host;
      EXPECT_EQ(
          testkit::check_outputs(args.out, {}, args.options, reference::attention(args),
                                 std::string(name(dtypes.kv)),
                                 testkit::gpu_arithmetic(args.q, args.k_cache, args.cu_seqlens_q)),
          "");
    }
  }
}

TEST(GpuLimits, StoringPastTwoToThe32Elements) {
  if (!has_room(22)) GTEST_SKIP() << "needs 22 GiB of free device memory";
  const GpuLane& lane = testkit::main_lane();
  for (DType cache_dtype : {DType::kBFloat16, DType::kFloat8E4M3}) {
    const FarPool k_pool(lane, cache_dtype, 1'200'000, false);
    const FarPool v_pool(lane, cache_dtype, 1'200'000, true);
    testkit::StoreCase c;
    c.cache_dtype = cache_dtype;
    c.num_tokens = 4;
    c.num_kv_heads = 2;
    c.head_dim = 128;
    testkit::StoreBatch batch(c);
    const std::vector<std::int64_t> pages = {524288, 1048576, 1199999, 2};
    std::vector<std::int64_t> places;
    for (std::int64_t page : pages) places.push_back(page * 16 + 7);
    const GuardedTensor slots = GuardedTensor::of_ints(places);
    StoreKvArgs args = batch.args;
    args.slot_mapping = slots;
    args.k_cache = args.v_cache = {};
    const auto call = [&](StoreKvArgs a, const Execution& execution) {
      a.k_cache = k_pool.on_gpu;
      a.v_cache = v_pool.on_gpu;
      store_kv(a, execution);
    };
    EXPECT_EQ(testkit::call_on_gpu(testkit::main_lane(), args, call), "");
    args.k_cache = k_pool.on_host;
    args.v_cache = v_pool.on_host;
    const reference::StoreResult want = reference::store_kv(args);
    testkit::RoundedCheck rounded("cache");
    for (std::int64_t token = 0; token < 4; ++token) {
      const std::int64_t page = pages[std::size_t(token)];
      k_pool.download(lane, page);
      v_pool.download(lane, page);
      for (std::int64_t head = 0; head < 2; ++head) {
        for (std::int64_t d = 0; d < 128; ++d) {
          const auto at = static_cast<std::size_t>((token * 2 + head) * 128 + d);
          rounded.add(args.k_cache, {page, 7, head, d}, want.k[at]);
          rounded.add(args.v_cache, {page, 7, head, d}, want.v[at]);
        }
      }
    }
    EXPECT_EQ(rounded.failure(), "");
  }
}

/// Rows whose token stride is so large that the last one lies past 2^31 elements.
class FarRows {
 public:
  FarRows() : memory_(static_cast<std::size_t>((3 * kStride + 128) * 2)) {
    const std::array<std::int64_t, 3> sizes = {4, 2, 64};
    const std::array<std::int64_t, 3> strides = {kStride, 64, 1};
    view = Tensor(memory_.data(), DType::kBFloat16, sizes, strides, kGpu);
  }
  std::byte* row(std::int64_t token) const { return memory_.data() + token * kStride * 2; }

  static constexpr std::size_t kRowBytes = 256;
  Tensor view;

 private:
  static constexpr std::int64_t kStride = (std::int64_t{1} << 30) + 4096;
  DeviceMemory memory_;
};

TEST(GpuLimits, RowsOfQKVAndOutPastTwoToThe31Elements) {
  if (!has_room(28)) GTEST_SKIP() << "needs 28 GiB of free device memory";
  const GpuLane& lane = testkit::main_lane();
  testkit::Rng rng(6);
  std::vector<FarRows> far(4);  // q, k, v, out
  std::vector<GuardedTensor> host;
  for (std::size_t i = 0; i < far.size(); ++i) {
    GuardedTensor& near = host.emplace_back(DType::kBFloat16, std::vector<std::int64_t>{4, 2, 64});
    if (i < 3) near.fill_normal(rng);
    for (std::int64_t token = 0; token < 4; ++token) {
      lane.stream.upload(far[i].row(token), near.tensor().select(0, token).data(),
                         FarRows::kRowBytes);
    }
  }
  const GuardedTensor ends = GuardedTensor::of_ints(std::vector<std::int32_t>{0, 4});
  PackedAttentionArgs args;
  args.cu_seqlens_q = ends;
  args.cu_seqlens_k = ends;
  args.options.scale = 0.125;
  const auto call = [&](PackedAttentionArgs a, const Execution& execution) {
    a.q = far[0].view, a.k = far[1].view, a.v = far[2].view, a.out = far[3].view;
    packed_attention(a, execution);
  };
  EXPECT_EQ(testkit::call_on_gpu(testkit::main_lane(), args, call), "");
  for (std::int64_t token = 0; token < 4; ++token) {
    lane.stream.download(host[3].tensor().select(0, token).data(), far[3].row(token),
                         FarRows::kRowBytes);
  }
  args.q = host[0], args.k = host[1], args.v = host[2], args.out = host[3];
  EXPECT_EQ(
      testkit::check_outputs(args.out, {}, args.options, reference::attention(args), "far rows",
                             testkit::gpu_arithmetic(args.q, args.k, args.cu_seqlens_q)),
      "");
}

/// A grid or a counter of 16 bits ends at 65,535.
TEST(GpuLimits, ManyRequestsAndLongOnes) {
  std::vector<AttentionCase> cases;
  AttentionCase many;
  many.name = "70,000 requests of one row";
  many.page_size = 8;
  many.num_q_heads = 2;
  many.num_kv_heads = 1;
  many.q_lens.assign(70'000, 1);
  for (std::int32_t r = 0; r < 70'000; ++r) many.kv_lens.push_back(1 + r % 3);
  testkit::set_dtypes(many, kBf16);
  for (std::uint64_t seed : {4U, 6U, 7U}) {  // plan given, packed, packed with a plan
    many.seed = seed;
    cases.push_back(many);
  }
  for (const DTypes& dtypes : {kBf16, kBf16Fp8}) {
    for (std::int32_t q_len : {1, 40}) {
      AttentionCase c;
      c.name = "one request of 200,000 tokens";
      c.seed = 4 + 2 * cases.size();
      c.num_q_heads = 2;
      c.num_kv_heads = 1;
      c.page_size = 64;
      c.q_lens = {q_len};
      c.kv_lens = {200'000};
      testkit::set_dtypes(c, dtypes);
      cases.push_back(c);
    }
  }
  testkit::expect_all_right(cases, testkit::run_on_gpu);
}

}  // namespace
}  // namespace hpcattn
