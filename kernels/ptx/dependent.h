// SPDX-License-Identifier: Apache-2.0
// Programmatic dependent launch (PTX ISA 9.7.13.13, griddepcontrol; sm_90 on, elsewhere nothing): a
// kernel that is launched so may begin while the one before it in the stream still runs.
#pragma once

namespace hpcattn::ptx {

/// Until here nothing is read that the kernel before may write: it has ended, and all that it wrote
/// is there.
inline void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

/// The next kernel may begin where there is room for it.
inline void let_next_kernel_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

}  // namespace hpcattn::ptx
