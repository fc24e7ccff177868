// SPDX-License-Identifier: Apache-2.0
#include "kernels/tile/fault.h"

#include "src/cuda/device.h"
#include "src/cuda/test_fakes.h"
#include "src/plan/layout.h"

namespace hpcattn::cuda {
namespace {

/// As a kernel does it: device memory is host memory here.
std::string report(int device, FaultKind kind, std::array<std::int64_t, 4> values) {
  auto* box = static_cast<Fault*>(fault_mailbox(device));
  box->claimed = 1;
  std::copy(values.begin(), values.end(), box->values);
  box->kind = static_cast<std::int32_t>(kind);
  const std::string text = thrown<DeviceError>([&] { check_faults(device); });
  EXPECT_EQ(box->claimed, 0);
  check_faults(device);  // told once
  return text;
}

TEST(CudaFault, EachKindIsASentence) {
  in_new_process([] {
    use_fakes({});
    check_faults(0);
    const std::string none = report(1, FaultKind::kPlanGroup, {7, 0, 0, 0});
    expect_contains(none, "an earlier call on device 1 failed: its plan tensor holds no plan");
    expect_contains(report(0, FaultKind::kPlanGroup, {plan::kMagic, 4, 5, 128}),
                    "for 4 requests and head dim 128, the call has 5 requests");
    expect_contains(report(0, FaultKind::kPlanBatch, {3, 100, 200, 0}),
                    "request 3 had 100 KV tokens then and has 200 now");
    expect_contains(
        report(0, FaultKind::kPlanOverflow, {10, 4, 64, 32}),
        "needs 10 tasks, 4 combines and 32 rows of partial results, which a tensor of 64 words");
    expect_contains(report(0, FaultKind::kPlanOverflow, {300, 200, 0, 0}),
                    "has 300 rows of partial results, the call has room for 200");
    expect_contains(report(0, FaultKind::kPageId, {2, 7, 99, 50}),
                    "page 7 of request 2 has id 99, expected 0 to 49");
    expect_contains(report(0, FaultKind::kLength, {0, 4, 3, 1000}), "cu_seqlens_q[4] is 3");
    expect_contains(report(0, FaultKind::kLength, {1, 4, -3, 1000}), "kv_lens[4] is -3");
    expect_contains(report(0, FaultKind::kLength, {2, 4, 80, 63}),
                    "slot_mapping[4] is 80, expected -1 (not stored) or 0 to 63");
    expect_contains(report(0, FaultKind::kLength, {3, 4, 80, 63}), "positions[4] is 80");
    expect_contains(report(0, FaultKind::kLength, {9, 4, 80, 63}), "length 9[4] is 80");
    expect_contains(report(0, FaultKind(77), {1, 2, 3, 4}), "fault 77 (1, 2, 3, 4)");
  });
}

TEST(CudaFault, MailboxesAreADevicesOwn) {
  in_new_process([] {
    use_fakes({});
    EXPECT_NE(fault_mailbox(0), fault_mailbox(1));
    static_cast<Fault*>(fault_mailbox(1))->kind = 1;
    check_faults(0);
    EXPECT_THROW(check_faults(1), DeviceError);
  });
}

}  // namespace
}  // namespace hpcattn::cuda
