// SPDX-License-Identifier: Apache-2.0
// The device code that the library carries (cmake/EmbedSources.cmake), as NVRTC is given it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hpcattn::cuda {

struct EmbeddedSource {
  const char* name;  // as an #include writes it: "kernels/tile/fault.h", "cstdint"
  const char* text;
};

/// All of them, by name.
std::span<const EmbeddedSource> embedded_sources();

/// What `source` includes of them, directly or not, by name. An include that is not among them is
/// left for the compiler to complain of.
std::vector<EmbeddedSource> included_sources(std::string_view source);

}  // namespace hpcattn::cuda
