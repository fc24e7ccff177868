// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/context.h"

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "kernels/tile/fault.h"
#include "src/common/check.h"

namespace hpcattn::cuda {
namespace {

constexpr int kMaxDevices = 64;
std::array<std::atomic<const DeviceState*>, kMaxDevices> states{};

int attribute(const Driver& d, DeviceHandle handle, DeviceAttribute which) {
  int value = 0;
  check_driver(d.device_attribute(&value, which, handle), "cuda: cuDeviceGetAttribute");
  return value;
}

DeviceInfo read_info(const Driver& d, int device, DeviceHandle handle) {
  DeviceInfo info{.index = device};
  std::array<char, 256> name{};
  check_driver(d.device_name(name.data(), int(name.size()) - 1, handle), "cuda: cuDeviceGetName");
  info.name = name.data();
  info.major = attribute(d, handle, kCapabilityMajor);
  info.minor = attribute(d, handle, kCapabilityMinor);
  info.num_sms = attribute(d, handle, kNumSms);
  info.shared_bytes_per_cta = attribute(d, handle, kSharedBytesPerCta);
  info.shared_bytes_per_sm = attribute(d, handle, kSharedBytesPerSm);
  info.l2_bytes = attribute(d, handle, kL2Bytes);
  std::size_t memory = 0;
  check_driver(d.device_memory(&memory, handle), "cuda: cuDeviceTotalMem");
  info.memory_bytes = std::int64_t(memory);
  return info;
}

void make_mailbox(const Driver& d, DeviceState& state) {
  const RelaxedCapture relaxed;
  void* host = nullptr;
  check_driver(d.push_context(state.context), "cuda: cuCtxPushCurrent");
  const Result allocated =
      d.host_alloc(&host, sizeof(Fault), kHostAllocPortable | kHostAllocMapped);
  DevicePointer on_device = 0;
  const Result mapped =
      allocated == kSuccess ? d.host_device_pointer(&on_device, host, 0) : allocated;
  Context popped = nullptr;
  d.pop_context(&popped);
  check_driver(mapped, "cuda: no host memory for the reports of kernels");
  state.mailbox = new (host) Fault;
  state.mailbox_on_device = pointer_of(on_device);
}

const DeviceState* make_state(int device) {
  const Driver& d = driver();
  int count = 0;
  check_driver(d.device_count(&count), "cuda: cuDeviceGetCount");
  if (device < 0 || device >= count || device >= kMaxDevices) {
    throw DeviceError(message("cuda: there is no device ", device, ": this process sees ", count,
                              " (CUDA_VISIBLE_DEVICES chooses which)."));
  }
  DeviceHandle handle = 0;
  check_driver(d.device_get(&handle, device), "cuda: cuDeviceGet");
  auto state = std::make_unique<DeviceState>(DeviceState{.info = read_info(d, device, handle)});
  const DeviceInfo& info = state->info;
  check_supported(info.major >= 8, "cuda: device ", device, " (", info.name,
                  ") has compute capability ", info.major, ".", info.minor,
                  ", expected 8.0 (Ampere) or newer. Keep the tensors on the CPU.");
  state->has_memory_pools = attribute(d, handle, kHasMemoryPools) != 0;
  check_driver(d.primary_context(&state->context, handle), "cuda: cuDevicePrimaryCtxRetain");
  make_mailbox(d, *state);
  return state.release();  // lives to the end of the process
}

}  // namespace

const DeviceState* existing_state(int device) {
  if (device < 0 || device >= kMaxDevices) return nullptr;
  return states[std::size_t(device)].load(std::memory_order_acquire);
}

const DeviceState& device_state(int device) {
  driver();  // before a state is trusted: a forked child must not use its parent's
  if (const DeviceState* state = existing_state(device)) return *state;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (existing_state(device) == nullptr) {
    const DeviceState* made = make_state(device);
    states[std::size_t(device)].store(made, std::memory_order_release);
  }
  return *existing_state(device);
}

const DeviceInfo& device_info(int device) { return device_state(device).info; }

DeviceGuard::DeviceGuard(int device) {
  const DeviceState& state = device_state(device);
  const Driver& d = driver();
  Context current = nullptr;
  check_driver(d.current_context(&current), "cuda: cuCtxGetCurrent");
  if (current == state.context) return;
  check_driver(d.push_context(state.context), "cuda: cuCtxPushCurrent");
  pushed_ = true;
}

DeviceGuard::~DeviceGuard() {
  if (!pushed_) return;
  Context popped = nullptr;
  driver().pop_context(&popped);
}

}  // namespace hpcattn::cuda
