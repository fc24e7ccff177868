// SPDX-License-Identifier: Apache-2.0
// The combine kernel's shape; read by the host too.
#pragma once

namespace hpcattn {

/// Eight warps, one row each at a time.
inline constexpr int kCombineThreads = 256;

}  // namespace hpcattn
