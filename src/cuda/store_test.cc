// SPDX-License-Identifier: Apache-2.0
// The device code of store_kv, run on the CPU thread by thread, against the reference.
#include "src/cuda/store.h"

#include <gtest/gtest.h>

#include "kernels/fused/store/piece.h"
#include "src/testing/random.h"
#include "src/testing/store_case.h"

namespace hpcattn::cuda {
namespace {

using testkit::KvLayout;
using testkit::StoreBatch;
using testkit::StoreCase;

constexpr DType kWide[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr KvLayout kLayouts[] = {KvLayout::kNhd, KvLayout::kHnd, KvLayout::kHalves,
                                 KvLayout::kInterleaved, KvLayout::kMixed};

template <StoreSpec kSpec>
void run_threads(const StoreParams& p) {
  for (std::int64_t i = 0; i < num_store_pieces(p); ++i) store_piece<kSpec>(p, i);
}

template <DType kDType>
void run_cache(const StoreParams& p, DType cache_dtype) {
  switch (cache_dtype) {
    case DType::kFloat8E4M3: return run_threads<StoreSpec{kDType, DType::kFloat8E4M3}>(p);
    case DType::kFloat8E5M2: return run_threads<StoreSpec{kDType, DType::kFloat8E5M2}>(p);
    default: return run_threads<StoreSpec{kDType, kDType}>(p);
  }
}

Fault run_on_host(const StoreKvArgs& args) {
  Fault fault;
  const StoreParams p = store_params(args, &fault);
  switch (args.k.dtype()) {
    case DType::kFloat16: run_cache<DType::kFloat16>(p, args.k_cache.dtype()); break;
    case DType::kBFloat16: run_cache<DType::kBFloat16>(p, args.k_cache.dtype()); break;
    default: run_cache<DType::kFloat32>(p, args.k_cache.dtype());
  }
  return fault;
}

std::string check(const StoreCase& c, std::uint64_t seed = 1) {
  return StoreBatch(c, seed).run_and_check_by([](const StoreKvArgs& args) {
    return run_on_host(args).kind == 0 ? "" : "a fault was reported\n";
  });
}

TEST(StoreDeviceCode, EveryDtypeLayoutAndKindOfScale) {
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
            EXPECT_EQ(check(c), "") << to_string(c);
          }
        }
      }
    }
  }
}

TEST(StoreDeviceCode, AnyShape) {
  testkit::Rng rng(9);
  for (std::uint64_t round = 0; round < 80; ++round) {
    StoreCase c;
    c.dtype = kWide[rng.integer(0, 2)];
    c.cache_dtype = rng.pick(std::vector<DType>{c.dtype, DType::kFloat8E4M3, DType::kFloat8E5M2});
    c.layout = kLayouts[rng.integer(0, 4)];
    c.num_tokens = rng.integer(0, 150);
    c.num_kv_heads = rng.integer(1, 9);
    c.head_dim = rng.pick(std::vector<std::int64_t>{64, 80, 96, 128, 192, 256});
    c.page_size = 8 * rng.integer(1, 5);
    c.padding_tokens = rng.integer(0, c.num_tokens);
    c.packed = rng.chance(0.5);
    ASSERT_EQ(check(c, round), "") << "round " << round << ": " << to_string(c);
  }
}

TEST(StoreDeviceCode, ASlotOutsideThePoolIsReportedAndNotWritten) {
  for (std::int32_t slot : {-2, 1 << 30}) {
    StoreCase c;
    c.num_tokens = 1;
    StoreBatch batch(c);
    const auto slots = testkit::GuardedTensor::of_ints(std::vector<std::int32_t>{slot});
    batch.args.slot_mapping = slots;
    const Fault fault = run_on_host(batch.args);
    EXPECT_EQ(static_cast<FaultKind>(fault.kind), FaultKind::kLength);
    EXPECT_EQ(fault.values[2], slot);
    EXPECT_TRUE(batch.pool.untouched());
  }
}

TEST(StoreDeviceCode, QuotientsOfAnyLength) {
  for (std::int64_t a : {0L, 1L, 7L, (1L << 32) - 1, 1L << 32, (1L << 40) + 3}) {
    for (std::int64_t b : {1L, 3L, 8L, (1L << 32) - 1, 1L << 33}) EXPECT_EQ(quotient(a, b), a / b);
  }
}

TEST(StoreDeviceCode, EveryVariantIsListed) { EXPECT_EQ(all_store_variants().size(), 9U); }

}  // namespace
}  // namespace hpcattn::cuda
