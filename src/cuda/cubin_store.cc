// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/cubin_store.h"

#include <sys/stat.h>

#include <map>
#include <mutex>

#include "src/common/check.h"
#include "src/cuda/compile.h"
#include "src/cuda/nvrtc.h"

namespace hpcattn::cuda {
namespace {

std::mutex mutex;  // of what follows
std::string last_problem;

/// One machine code of this process: those who want it wait for the mutex.
struct Slot {
  std::mutex mutex;
  std::optional<Cubin> kept;  // where no folder keeps it
};

Slot& slot_of(const Sha256::Digest& key) {
  static std::map<Sha256::Digest, Slot> slots;
  const std::lock_guard lock(mutex);
  return slots[key];
}

std::optional<Cubin> find_shipped(const KernelVariant& variant, const std::string& arch,
                                  int driver_version) {
  const CubinFolder folder = CubinFolder::shipped(shipped_path());
  std::optional<Cubin> cubin = folder.load(cubin_key(variant, arch, 0, 0));
  if (cubin && driver_version != 0 && cubin->nvrtc_major > driver_version / 1000) {
    return std::nullopt;
  }
  return cubin;
}

Cubin compiled(const KernelVariant& variant, const std::string& arch) {
  std::string bytes = compile(variant, arch);
  return {std::move(bytes), nvrtc().major, nvrtc().minor};
}

}  // namespace

Cubin find_cubin(const KernelVariant& variant, const std::string& arch, int driver_version) {
  if (std::optional<Cubin> shipped = find_shipped(variant, arch, driver_version)) return *shipped;
  const Nvrtc& n = nvrtc();
  const Sha256::Digest key = cubin_key(variant, arch, n.major, n.minor);
  Slot& slot = slot_of(key);
  const std::lock_guard lock(slot.mutex);
  if (slot.kept) return *slot.kept;
  CubinFolder folder = CubinFolder::private_to_user(cache_path());
  std::optional<Cubin> cubin = folder.load(key);
  if (!cubin) {
    cubin = compiled(variant, arch);
    if (!folder.store(key, *cubin)) slot.kept = cubin;
  }
  const std::lock_guard problem_lock(mutex);
  last_problem = folder.problem();
  return *cubin;
}

std::int64_t write_shipped(const KernelVariant& variant, const std::string& arch,
                           const std::string& folder) {
  CubinFolder to = CubinFolder::private_to_user(folder);
  const Cubin cubin = find_cubin(variant, arch, 0);  // a second build finds what the first made
  const Sha256::Digest key = cubin_key(variant, arch, 0, 0);
  if (!to.store(key, cubin)) throw DeviceError(message("cuda: ", folder, ": ", to.problem(), "."));
  return std::int64_t(encode_cubin(key, cubin).size());
}

CubinPlace cubin_place(const KernelVariant& variant, const std::string& arch) {
  if (find_shipped(variant, arch, 0)) return CubinPlace::kShipped;
  try {
    const Nvrtc& n = nvrtc();
    const CubinFolder folder = CubinFolder::private_to_user(cache_path());
    const bool cached = folder.load(cubin_key(variant, arch, n.major, n.minor)).has_value();
    return cached ? CubinPlace::kCached : CubinPlace::kNowhere;
  } catch (const Error&) {
    return CubinPlace::kNowhere;  // without libnvrtc the cache is not asked either
  }
}

std::string cache_problem() {
  const std::lock_guard lock(mutex);
  return last_problem;
}

}  // namespace hpcattn::cuda
