// SPDX-License-Identifier: Apache-2.0
// Where a variant's machine code comes from: the folder that ships with the library, the user's
// cache, or a compilation, whose result goes into the cache.
#pragma once

#include <string>

#include "src/cuda/cubin_folder.h"

namespace hpcattn::cuda {

/// Threads that ask for the same wait for one compilation; processes may compile the same, and the
/// last one's file stays. A shipped one is left out where its compiler is of a later major version
/// than `driver_version` (13000 for CUDA 13.0; 0: any), since such a driver does not load it.
Cubin find_cubin(const KernelVariant& variant, const std::string& arch, int driver_version);

/// Compiles, or takes from a cache, for shipping: into `folder`, found there whatever libnvrtc a
/// user has. Throws DeviceError. Returns the bytes of the file.
std::int64_t write_shipped(const KernelVariant& variant, const std::string& arch,
                           const std::string& folder);

enum class CubinPlace { kNowhere, kShipped, kCached };

/// Where find_cubin() would find a variant for an arch, without compiling it.
CubinPlace cubin_place(const KernelVariant& variant, const std::string& arch);

/// Why the cache was last of no use, in a line; empty where it was.
std::string cache_problem();

}  // namespace hpcattn::cuda
