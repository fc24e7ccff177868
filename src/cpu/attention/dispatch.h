// SPDX-License-Identifier: Apache-2.0
// The kernels of the best instruction set that this processor has.
#pragma once

#include <string>
#include <vector>

#include "src/cpu/attention/task.h"

namespace hpcattn::cpu {

/// Chosen at first use. HPCATTN_CPU_ISA=generic|avx2|avx512 asks for a lower one (throws
/// Unsupported for one that this build or processor lacks).
const KernelTable& kernels();

/// Those of one instruction set; Unsupported where it can not run here.
const KernelTable& kernels(const std::string& isa);

/// Names that can run here, best first.
std::vector<std::string> usable_isas();

}  // namespace hpcattn::cpu
