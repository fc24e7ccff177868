// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/step.h"

#include "kernels/step/word.h"
#include "src/common/check.h"
#include "src/common/counter.h"
#include "src/cuda/device.h"
#include "src/cuda/kernel_table.h"

namespace hpcattn::cuda {

KernelVariant variant_of(const StepSpec&) {
  return {
      .name = "copy_step<{}>",
      .source = message("#include \"kernels/step/kernel.cuh\"\n"
                        "extern \"C\" __global__ void __launch_bounds__(",
                        kStepThreads,
                        ") hpcattn_kernel(const __grid_constant__ hpcattn::StepParams p) {\n"
                        "  hpcattn::copy_step<hpcattn::StepSpec{}>(p);\n}\n"),
      .threads = kStepThreads,
  };
}

std::vector<KernelVariant> all_step_variants() { return {variant_of(StepSpec{})}; }

void copy_step(const StepParams& params, int device, const Execution& execution) {
  static Counter launches("cuda/step");
  static KernelTable<StepSpec> table;
  const std::int64_t words = num_step_words(params);
  if (words == 0) return;
  check_faults(device);
  const DeviceGuard guard(device);
  const Kernel& kernel =
      table.get(device, StepSpec{}, [](const StepSpec& spec) { return variant_of(spec); });
  const auto ctas = static_cast<unsigned>((words + kStepThreads - 1) / kStepThreads);
  launch(kernel, {ctas, 1, 1}, execution, params);
  launches.add();
}

}  // namespace hpcattn::cuda
