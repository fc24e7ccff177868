// SPDX-License-Identifier: Apache-2.0
#include "kernels/tile/fault.h"

#include <array>
#include <atomic>
#include <cstddef>

#include "src/common/check.h"
#include "src/cuda/context.h"

namespace hpcattn::cuda {
namespace {

std::string sentence(FaultKind kind, const std::array<std::int64_t, 4>& v) {
  switch (kind) {
    case FaultKind::kNone: break;
    case FaultKind::kPlanGroup:
      return message(
          "the plan was made for another attention group: its fingerprint is ", v[1], ", expected ",
          v[0],
          ". Make a plan for these head counts, head dim, page size, dtypes, causal flag and window.");
    case FaultKind::kPlanBatch:
      return message(
          "the plan was made for other lengths: request ", v[0], " had ", v[1],
          " KV tokens in the plan and has ", v[2],
          " in this call. Call make_plan each step, before attention, with the lengths of the step.");
    case FaultKind::kPlanOverflow:
      return message("the plan needs ", v[0], " tasks and ", v[1],
                     " combines, which do not fit into a plan tensor of ", v[2],
                     " words. Size the tensor by plan_words with the largest batch that can come.");
    case FaultKind::kPageId:
      return message("page ", v[1], " of request ", v[0], " has id ", v[2], ", expected 0 to ",
                     v[3] - 1, " (the pages of the pool). Correct page_table.");
    case FaultKind::kLength: {
      constexpr std::array<const char*, 4> kNames = {"cu_seqlens_q", "kv_lens", "slot_mapping",
                                                     "positions"};
      const std::size_t which = std::size_t(v[0]);
      return message(which < kNames.size() ? kNames[which] : "a length", "[", v[1], "] is ", v[2],
                     ", expected at most ", v[3], " and no step down. Correct it on the device.");
    }
  }
  return message("a kernel reported fault ", static_cast<int>(kind), " (", v[0], ", ", v[1], ", ",
                 v[2], ", ", v[3], "), which this library does not know.");
}

}  // namespace

void* fault_mailbox(int device) { return device_state(device).mailbox_on_device; }

void check_faults(int device) {
  Fault& box = *device_state(device).mailbox;
  const std::atomic_ref<std::int32_t> kind(box.kind);
  const std::int32_t found = kind.load(std::memory_order_acquire);
  if (found == 0) [[likely]]
    return;
  const std::array<std::int64_t, 4> values = {box.values[0], box.values[1], box.values[2],
                                              box.values[3]};
  kind.store(0, std::memory_order_relaxed);
  std::atomic_ref<std::int32_t>(box.claimed).store(0, std::memory_order_release);
  throw DeviceError(message("cuda: an earlier call on device ", device,
                            " failed: ", sentence(static_cast<FaultKind>(found), values),
                            " What that call wrote is not valid."));
}

}  // namespace hpcattn::cuda
