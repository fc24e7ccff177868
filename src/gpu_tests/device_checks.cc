// SPDX-License-Identifier: Apache-2.0
// What kernels find wrong on the device. Slots and positions are always looked at, page ids and
// lengths with HPCATTN_DEVICE_CHECKS=1, which tools/test_gpu.sh sets for another run of these.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "hpcattn/error.h"
#include "src/gpu_tests/attention_run.h"
#include "src/gpu_tests/expect.h"
#include "src/testing/rope_case.h"
#include "src/testing/store_case.h"

namespace hpcattn {
namespace {

using testkit::AttentionBatch;
using testkit::AttentionCase;
using testkit::GuardedTensor;

/// Expects a DeviceError with `text`, and that the next one who asks is told nothing.
void expect_fault(const std::string& text, const std::function<void()>& call) {
  SCOPED_TRACE(text);
  try {
    call();
    ADD_FAILURE() << "no fault was reported";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
  EXPECT_NO_THROW(cuda::check_faults(0));
}

AttentionCase base_case() {
  AttentionCase c;
  c.q_lens = {1, 5, 30};
  c.kv_lens = {33, 20, 40};
  testkit::set_dtypes(c, {DType::kBFloat16, DType::kBFloat16, DType::kBFloat16});
  return c;
}

bool has_checks() { return std::getenv("HPCATTN_DEVICE_CHECKS") != nullptr; }

TEST(GpuDeviceChecks, APageIdOutsideThePool) {
  if (!has_checks()) GTEST_SKIP() << "set HPCATTN_DEVICE_CHECKS=1";
  const AttentionBatch whole(base_case());
  const std::int64_t num_pages = whole.paged().k_cache.size(0);
  for (const std::int64_t id : {num_pages, std::int64_t{-2}, std::int64_t{1} << 30}) {
    const AttentionBatch batch(base_case());
    const PagedAttentionArgs args = batch.paged();
    auto* table = args.page_table.data_as<std::int32_t>();
    table[2 * args.page_table.size(1) + 1] = static_cast<std::int32_t>(id);
    expect_fault("page 1 of request 2 has id " + std::to_string(id) + ", expected 0 to " +
                     std::to_string(num_pages - 1),
                 [&] { testkit::paged_on_gpu(testkit::main_lane(), args); });
  }
}

TEST(GpuDeviceChecks, LengthsThatCanNotBe) {
  if (!has_checks()) GTEST_SKIP() << "set HPCATTN_DEVICE_CHECKS=1";
  struct Values {
    const char* text;
    std::vector<std::int32_t> ends;
    std::vector<std::int32_t> lens;
  };
  const std::vector<Values> rows = {
      {"cu_seqlens_q[2] is 0", {0, 1, 0, 36}, {33, 20, 40}},
      {"cu_seqlens_q[0] is 1", {1, 1, 6, 36}, {33, 20, 40}},
      {"kv_lens[1] is -1", {0, 1, 6, 36}, {33, -1, 40}},
  };
  for (const Values& row : rows) {
    const AttentionBatch batch(base_case());
    const GuardedTensor ends = GuardedTensor::of_ints(row.ends);
    const GuardedTensor lens = GuardedTensor::of_ints(row.lens);
    PagedAttentionArgs args = batch.paged();
    args.cu_seqlens_q = ends;
    args.kv_lens = lens;
    expect_fault(row.text, [&] { testkit::paged_on_gpu(testkit::main_lane(), args); });
  }
}

TEST(GpuDeviceChecks, ASlotOutsideThePool) {
  testkit::StoreCase c;
  c.hole_share = 0.0;
  c.index_dtype = DType::kInt64;
  const testkit::StoreBatch batch(c);
  batch.args.slot_mapping.data_as<std::int64_t>()[7] = std::int64_t{1} << 40;
  expect_fault("slot_mapping[7] is 1099511627776", [&] {
    testkit::call_on_gpu(testkit::main_lane(), batch.args,
                         [](const StoreKvArgs& a, const Execution& e) { store_kv(a, e); });
  });
}

TEST(GpuDeviceChecks, APositionOutsideOfCosSin) {
  testkit::RopeCase c;
  c.given_positions = true;
  c.places = testkit::Places::kNoCache;
  const testkit::RopeBatch batch(c);
  batch.args().positions.data_as<std::int32_t>()[3] = 100'000;
  expect_fault("positions[3] is 100000", [&] {
    testkit::call_on_gpu(
        testkit::main_lane(), batch.args(),
        [](const RopeNormStoreKvArgs& a, const Execution& e) { rope_norm_store_kv(a, e); });
  });
}

}  // namespace
}  // namespace hpcattn
