// SPDX-License-Identifier: Apache-2.0
#include "hpcattn/store.h"

#include <gtest/gtest.h>

#include <functional>

#include "hpcattn/error.h"
#include "src/cpu/reference/numbers.h"
#include "src/cpu/reference/store.h"
#include "src/testing/execution.h"
#include "src/testing/guarded_tensor.h"
#include "src/testing/kv_pool.h"
#include "src/testing/rounded_check.h"
#include "src/testing/store_case.h"

namespace hpcattn {
namespace {

using testkit::GuardedTensor;
using testkit::KvLayout;
using testkit::Rng;
using testkit::StoreBatch;
using testkit::StoreCase;

constexpr DType kWide[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr KvLayout kLayouts[] = {KvLayout::kNhd, KvLayout::kHnd, KvLayout::kHalves,
                                 KvLayout::kInterleaved, KvLayout::kMixed};

TEST(StoreTest, EveryDtypeLayoutAndKindOfScale) {
  for (DType dtype : kWide) {
    for (DType cache_dtype : {dtype, DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      for (KvLayout layout : kLayouts) {
        for (bool per_head : {false, true}) {
          for (bool packed : {false, true}) {
            StoreCase c;
            c.dtype = dtype;
            c.cache_dtype = cache_dtype;
            c.layout = layout;
            c.scale_per_head = per_head;
            c.packed = packed;
            c.index_dtype = packed ? DType::kInt64 : DType::kInt32;
            EXPECT_EQ(StoreBatch(c).run_and_check(), "") << to_string(c);
          }
        }
      }
    }
  }
}

TEST(StoreTest, AnyShape) {
  Rng rng(9);
  for (int round = 0; round < 80; ++round) {
    StoreCase c;
    c.dtype = rng.pick(std::vector<DType>(std::begin(kWide), std::end(kWide)));
    c.cache_dtype = rng.pick(std::vector<DType>{c.dtype, DType::kFloat8E4M3, DType::kFloat8E5M2});
    c.layout = kLayouts[rng.integer(0, 4)];
    c.index_dtype = rng.chance(0.5) ? DType::kInt32 : DType::kInt64;
    c.num_tokens = rng.integer(0, 150);
    c.num_kv_heads = rng.integer(1, 9);
    c.head_dim = rng.pick(std::vector<std::int64_t>{64, 80, 96, 128, 192, 256});
    c.page_size = 8 * rng.integer(1, 5);
    c.padding_tokens = rng.integer(0, c.num_tokens);
    c.hole_share = rng.pick(std::vector<double>{0.0, 0.3, 1.0});
    c.scale_per_head = rng.chance(0.5);
    c.packed = rng.chance(0.5);
    const Execution execution = testkit::with_threads(static_cast<int>(rng.integer(1, 4)));
    const auto seed = static_cast<std::uint64_t>(round);
    ASSERT_EQ(StoreBatch(c, seed).run_and_check(execution), "")
        << "round " << round << ": " << to_string(c);
  }
}

TEST(StoreTest, CopiesKeepEveryBit) {
  // NaN with a payload, -0 and subnormals included: nothing is converted between like dtypes.
  for (DType dtype : kWide) {
    StoreCase c;
    c.dtype = c.cache_dtype = dtype;
    c.hole_share = 0.0;
    c.layout = KvLayout::kInterleaved;
    StoreBatch batch(c);
    Rng rng(2);
    auto* bytes = static_cast<std::uint8_t*>(batch.k.tensor().data());
    for (std::size_t i = 0; i < batch.k.bytes().size(); ++i)
      bytes[i] = static_cast<std::uint8_t>(rng.next());
    store_kv(batch.args);
    const auto places = reference::store_kv(batch.args).places;
    for (std::int64_t token = 0; token < c.num_tokens; ++token) {
      const reference::Place place = places[static_cast<std::size_t>(token)];
      for (std::int64_t head = 0; head < c.num_kv_heads; ++head) {
        for (std::int64_t d = 0; d < c.head_dim; ++d) {
          ASSERT_EQ(testkit::code_at(batch.args.k_cache, {place.page, place.offset, head, d}),
                    testkit::code_at(batch.args.k, {token, head, d}));
          ASSERT_EQ(testkit::code_at(batch.args.v_cache, {place.page, place.offset, head, d}),
                    testkit::code_at(batch.args.v, {token, head, d}));
        }
      }
    }
  }
}

TEST(StoreTest, PagesPast2To31ElementsAreFound) {
  constexpr std::int64_t kPages = (std::int64_t{1} << 32) / (8 * 64) + 2;  // of 512 elements
  const auto bytes = static_cast<std::size_t>(kPages * 8 * 64);
  testkit::GuardedBuffer k_pool(bytes, testkit::GuardSide::kAfter, true);
  testkit::GuardedBuffer v_pool(bytes, testkit::GuardSide::kAfter, true);
  StoreCase c;
  c.cache_dtype = DType::kFloat8E4M3;
  c.num_tokens = 1;
  c.num_kv_heads = 1;
  c.head_dim = 64;
  StoreBatch batch(c);
  const GuardedTensor slots = GuardedTensor::of_ints(std::vector<std::int64_t>{kPages * 8 - 2});
  batch.args.slot_mapping = slots;
  batch.args.k_cache = Tensor::contiguous(k_pool.data(), c.cache_dtype, {kPages, 8, 1, 64});
  batch.args.v_cache = Tensor::contiguous(v_pool.data(), c.cache_dtype, {kPages, 8, 1, 64});
  store_kv(batch.args);
  const reference::StoreResult want = reference::store_kv(batch.args);
  testkit::RoundedCheck rounded("k_cache");
  for (std::int64_t d = 0; d < 64; ++d) {
    rounded.add(batch.args.k_cache, {kPages - 1, 6, 0, d}, want.k[static_cast<std::size_t>(d)]);
    rounded.add(batch.args.v_cache, {kPages - 1, 6, 0, d}, want.v[static_cast<std::size_t>(d)]);
    EXPECT_EQ(testkit::code_at(batch.args.k_cache, {kPages - 1, 7, 0, d}), 0U);
  }
  EXPECT_EQ(rounded.failure(), "");
}

struct Refusal {
  const char* text;
  std::function<void(StoreKvArgs&)> spoil;
};

/// Each call throws E with its text and writes nothing.
template <typename E>
void expect_refused(const StoreCase& c, const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.text);
    StoreBatch batch(c);
    StoreKvArgs args = batch.args;
    refusal.spoil(args);
    try {
      store_kv(args);
      ADD_FAILURE() << "was accepted";
    } catch (const E& error) {
      EXPECT_NE(std::string(error.what()).find(refusal.text), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).rfind("store_kv: ", 0), 0U) << error.what();
    } catch (const Error& error) {
      ADD_FAILURE() << "another kind of error: " << error.what();
    }
    EXPECT_TRUE(batch.pool.untouched());
  }
}

Tensor reshaped(const Tensor& tensor, std::initializer_list<std::int64_t> sizes) {
  return Tensor::contiguous(tensor.data(), tensor.dtype(), sizes, tensor.device());
}

Tensor retyped(const Tensor& tensor, DType dtype) {
  return {tensor.data(), dtype, tensor.sizes(), tensor.strides(), tensor.device()};
}

Tensor moved(const Tensor& tensor) {
  return {tensor.data(), tensor.dtype(), tensor.sizes(), tensor.strides(), {DeviceType::kCuda, 1}};
}

void set_index(const Tensor& tensor, std::int64_t i, std::int32_t value) {
  tensor.data_as<std::int32_t>()[i] = value;
}

TEST(StoreTest, BadArgumentsAreRefused) {
  static const GuardedTensor one = GuardedTensor::of_floats({1.0});
  static const GuardedTensor backwards = GuardedTensor(DType::kBFloat16, {41, 3, 80, 2});
  const std::vector<Refusal> refusals = {
      {"k is not given", [](auto& a) { a.k = Tensor(); }},
      {"k is bfloat16[3, 80] on cpu, expected shape [any, any, any]",
       [](auto& a) { a.k = reshaped(a.k, {3, 80}); }},
      {"k has dtype int32, expected float32 or float16 or bfloat16",
       [](auto& a) { a.k = retyped(a.k, DType::kInt32); }},
      {"k has dtype float8_e4m3, expected",
       [](auto& a) { a.k = retyped(a.k, DType::kFloat8E4M3); }},
      {"k has no heads", [](auto& a) { a.k = a.v = a.k.slice(1, 0, 0); }},
      {"k has stride 2 in its last dim", [](auto& a) { a.k = backwards.tensor().select(3, 0); }},
      {"v is bfloat16[40, 3, 80] on cpu, expected shape [41, 3, 80]",
       [](auto& a) { a.v = a.v.slice(0, 0, 40); }},
      {"v has dtype float16, expected bfloat16",
       [](auto& a) { a.v = retyped(a.v, DType::kFloat16); }},
      {"v is on cuda:1, expected cpu", [](auto& a) { a.v = moved(a.v); }},
      {"k_cache is not given", [](auto& a) { a.k_cache = Tensor(); }},
      {"v_cache is not given", [](auto& a) { a.v_cache = Tensor(); }},
      {"k_cache is bfloat16[7, 8, 2, 80] on cpu, expected shape [any, any, 3, 80]",
       [](auto& a) { a.k_cache = a.k_cache.slice(2, 0, 2); }},
      {"k_cache has dtype float16, expected with a bfloat16 k: a cache of bfloat16, float8_e4m3 or "
       "float8_e5m2",
       [](auto& a) { a.k_cache = retyped(a.k_cache, DType::kFloat16); }},
      {"v_cache is bfloat16[6, 8, 3, 80] on cpu, expected k_cache's shape",
       [](auto& a) { a.v_cache = a.v_cache.slice(0, 0, 6); }},
      {"v_cache has dtype float8_e4m3, expected bfloat16 (as k_cache has)",
       [](auto& a) { a.v_cache = retyped(a.v_cache, DType::kFloat8E4M3); }},
      {"v_cache is on cuda:1, expected cpu", [](auto& a) { a.v_cache = moved(a.v_cache); }},
      {"k_cache is written and has stride 0 in dim 0",
       [](auto& a) {
         const std::vector<std::int64_t> strides = {0, 240, 80, 1};
         a.k_cache = Tensor(a.k_cache.data(), a.k_cache.dtype(), a.k_cache.sizes(), strides);
       }},
      {"k_cache is written and its strides lay entries over each other",
       [](auto& a) {
         const std::vector<std::int64_t> strides = {1920, 240, 40, 1};
         a.k_cache = Tensor(a.k_cache.data(), a.k_cache.dtype(), a.k_cache.sizes(), strides);
       }},
      {"v_cache and k_cache share memory", [](auto& a) { a.v_cache = a.k_cache; }},
      {"k_cache shares memory with v, which is read",
       [](auto& a) { a.v = reshaped(a.k_cache, {41, 3, 80}); }},
      {"slot_mapping is not given", [](auto& a) { a.slot_mapping = Tensor(); }},
      {"slot_mapping has dtype float32, expected int32 or int64",
       [](auto& a) { a.slot_mapping = retyped(a.slot_mapping, DType::kFloat32); }},
      {"slot_mapping is int32[41, 1] on cpu, expected shape [any]",
       [](auto& a) { a.slot_mapping = reshaped(a.slot_mapping, {41, 1}); }},
      {"slot_mapping has 41 entries, expected at most k's 40 tokens",
       [](auto& a) {
         a.k = a.k.slice(0, 0, 40);
         a.v = a.v.slice(0, 0, 40);
       }},
      {"slot_mapping is on cuda:1", [](auto& a) { a.slot_mapping = moved(a.slot_mapping); }},
      {"slot_mapping[40] is 56, expected -1 or 0 to 55 (k_cache has 7 pages of 8).",
       [](auto& a) { set_index(a.slot_mapping, 40, 56); }},
      {"slot_mapping[2] is -2, expected -1 or 0 to 55",
       [](auto& a) { set_index(a.slot_mapping, 2, -2); }},
      {"expected -1 (k_cache has 0 pages of 8).",
       [](auto& a) {
         a.k_cache = a.k_cache.slice(0, 0, 0);
         a.v_cache = a.v_cache.slice(0, 0, 0);
         set_index(a.slot_mapping, 0, 0);
       }},
      {"k_scale is given and nothing of k_cache is float8", [](auto& a) { a.k_scale = one; }},
  };
  StoreCase c;
  c.packed = false;
  expect_refused<InvalidArgument>(c, refusals);
}

TEST(StoreTest, BadScalesAreRefused) {
  const std::vector<Refusal> refusals = {
      {"k_scale is not given, needed for float8 k_cache", [](auto& a) { a.k_scale = Tensor(); }},
      {"v_scale is not given, needed for float8 v_cache", [](auto& a) { a.v_scale = Tensor(); }},
      {"k_scale is float32[2] on cpu, expected float32 [1] or [3].",
       [](auto& a) { a.k_scale = a.k_scale.slice(0, 0, 2); }},
      {"v_scale has dtype bfloat16, expected float32",
       [](auto& a) { a.v_scale = retyped(a.v_scale, DType::kBFloat16); }},
      {"v_scale is on cuda:1", [](auto& a) { a.v_scale = moved(a.v_scale); }},
      {"k_scale[1] is 0, expected a finite scale above 0.",
       [](auto& a) { a.k_scale.template data_as<float>()[1] = 0.0F; }},
      {"k_scale[2] is nan, expected a finite scale above 0.",
       [](auto& a) { a.k_scale.template data_as<float>()[2] = std::nanf(""); }},
      {"v_scale[0] is -1, expected a finite scale above 0.",
       [](auto& a) { a.v_scale.template data_as<float>()[0] = -1.0F; }},
      {"v_scale[0] is inf, expected a finite scale above 0.",
       [](auto& a) {
         a.v_scale.template data_as<float>()[0] = std::numeric_limits<float>::infinity();
       }},
  };
  StoreCase c;
  c.cache_dtype = DType::kFloat8E5M2;
  expect_refused<InvalidArgument>(c, refusals);
}

TEST(StoreTest, WhatIsNotSupportedIsRefused) {
  StoreCase odd_head;
  odd_head.head_dim = 72;
  expect_refused<Unsupported>(odd_head, {{"head_dim is 72, supported are 64, 80", [](auto&) {}}});
  StoreCase odd_page;
  odd_page.page_size = 12;
  expect_refused<Unsupported>(odd_page,
                              {{"page size 12, supported is a multiple of 8", [](auto&) {}}});
}

TEST(StoreTest, ADeviceThatIsNotThereIsTold) {
  StoreBatch batch({});
  for (Tensor* t : {&batch.args.k, &batch.args.v, &batch.args.k_cache, &batch.args.v_cache,
                    &batch.args.slot_mapping}) {
    *t = Tensor(t->data(), t->dtype(), t->sizes(), t->strides(), {DeviceType::kCuda, 1000});
  }
  EXPECT_THROW(store_kv(batch.args), DeviceError);
  EXPECT_TRUE(batch.pool.untouched());
}

}  // namespace
}  // namespace hpcattn
