// SPDX-License-Identifier: Apache-2.0
#include "kernels/tile/fault.h"

#include <array>
#include <atomic>
#include <cstddef>

#include "src/common/check.h"
#include "src/cuda/context.h"
#include "src/plan/layout.h"

namespace hpcattn::cuda {
namespace {

using Values = std::array<std::int64_t, 4>;

std::string plan_group(const Values& v) {
  if (v[0] != plan::kMagic) {
    return message("its plan tensor holds no plan (the first word is ", v[0], ", expected ",
                   plan::kMagic, "). Fill it by make_plan, on the same stream or before it.");
  }
  return message("its plan was made for another attention group or batch: for ", v[1],
                 " requests and head dim ", v[3], ", the call has ", v[2],
                 " requests. Make a plan for each group: head counts, head dim, page size, dtypes, "
                 "causal flag and window must be the call's.");
}

std::string plan_overflow(const Values& v) {
  constexpr const char* kFix =
      "Size the plan by plan_words with the largest batch that can come (requests, query tokens "
      "and KV tokens).";
  // The planner tells the tensor's words, attention does not.
  if (v[2] == 0) {
    return message("its plan has ", v[0], " rows of partial results, the call has room for ", v[1],
                   ". ", kFix);
  }
  return message("a plan needs ", v[0], " tasks, ", v[1], " combines and ", v[3],
                 " rows of partial results, which a tensor of ", v[2], " words does not hold. ",
                 kFix);
}

std::string length(const Values& v) {
  switch (v[0]) {
    case 0:
      return message("cu_seqlens_q[", v[1], "] is ", v[2],
                     ", expected to start at 0, never to fall, and at most ", v[3],
                     " here. Correct cu_seqlens_q.");
    case 1:
      return message("kv_lens[", v[1], "] is ", v[2], ", expected 0 to ", v[3],
                     " (cumulative ones never fall). Correct the KV lengths.");
    case 2:
      return message("slot_mapping[", v[1], "] is ", v[2], ", expected -1 (not stored) or 0 to ",
                     v[3], " (the slots of the pool). Correct slot_mapping.");
    case 3:
      return message("positions[", v[1], "] is ", v[2], ", expected 0 to ", v[3],
                     " (the rows of cos_sin). Correct positions, or make cos_sin longer.");
    default: break;
  }
  return message("length ", v[0], "[", v[1], "] is ", v[2], ", expected at most ", v[3], ".");
}

std::string sentence(FaultKind kind, const Values& v) {
  switch (kind) {
    case FaultKind::kNone: break;
    case FaultKind::kPlanGroup: return plan_group(v);
    case FaultKind::kPlanBatch:
      return message("its plan was made for other lengths: request ", v[0], " had ", v[1],
                     " KV tokens then and has ", v[2],
                     " now. Call make_plan in each step, after the lengths are there.");
    case FaultKind::kPlanOverflow: return plan_overflow(v);
    case FaultKind::kPageId:
      return message("page ", v[1], " of request ", v[0], " has id ", v[2], ", expected 0 to ",
                     v[3] - 1, " (the pages of the pool). Correct page_table.");
    case FaultKind::kPlanShared:
      return message("two calls used its plan at once (request ", v[0], ", ", v[1],
                     " splits), so their results are mixed up. Order the calls on one stream, or "
                     "make a plan for each stream.");
    case FaultKind::kLength: return length(v);
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
  const Values values = {box.values[0], box.values[1], box.values[2], box.values[3]};
  kind.store(0, std::memory_order_relaxed);
  std::atomic_ref<std::int32_t>(box.claimed).store(0, std::memory_order_release);
  throw DeviceError(message("cuda: an earlier call on device ", device,
                            " failed: ", sentence(static_cast<FaultKind>(found), values),
                            " What that call wrote is not valid."));
}

}  // namespace hpcattn::cuda
