// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/attention/dispatch.h"

#include <cstdlib>

#include "src/common/check.h"

namespace hpcattn::cpu {

namespace generic {
void fill_kernels(KernelTable& table);
}
#if HPCATTN_HAVE_AVX2
namespace avx2 {
void fill_kernels(KernelTable& table);
}
#endif
#if HPCATTN_HAVE_AVX512
namespace avx512 {
void fill_kernels(KernelTable& table);
}
#endif

namespace {

std::vector<KernelTable> usable_tables() {
  std::vector<KernelTable> tables;
#if HPCATTN_HAVE_AVX512
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("fma")) {
    avx512::fill_kernels(tables.emplace_back());
  }
#endif
#if HPCATTN_HAVE_AVX2
  // Every processor with AVX2 has F16C; not every compiler knows its name here.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    avx2::fill_kernels(tables.emplace_back());
  }
#endif
  generic::fill_kernels(tables.emplace_back());
  return tables;
}

const std::vector<KernelTable>& tables() {
  static const std::vector<KernelTable> all = usable_tables();
  return all;
}

const KernelTable& choose() {
  const char* wanted = std::getenv("HPCATTN_CPU_ISA");
  return wanted == nullptr || *wanted == '\0' ? tables().front() : kernels(wanted);
}

}  // namespace

const KernelTable& kernels() {
  static const KernelTable& chosen = choose();
  return chosen;
}

const KernelTable& kernels(const std::string& isa) {
  std::string names;
  for (const KernelTable& table : tables()) {
    if (isa == table.isa) return table;
    names += (names.empty() ? "" : ", ") + std::string(table.isa);
  }
  throw Unsupported(
      message("HPCATTN_CPU_ISA: \"", isa, "\" can not run here, expected one of ", names, "."));
}

std::vector<std::string> usable_isas() {
  std::vector<std::string> names;
  for (const KernelTable& table : tables()) names.emplace_back(table.isa);
  return names;
}

}  // namespace hpcattn::cpu
