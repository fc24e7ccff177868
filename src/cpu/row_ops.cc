// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/row_ops.h"

#include "src/cpu/attention/dispatch.h"

namespace hpcattn::cpu {

namespace generic {
extern const RowOps kRowOps;
}
#if HPCATTN_HAVE_AVX2
namespace avx2 {
extern const RowOps kRowOps;
}
#endif
#if HPCATTN_HAVE_AVX512
namespace avx512 {
extern const RowOps kRowOps;
}
#endif

const RowOps& row_ops(std::string_view isa) {
#if HPCATTN_HAVE_AVX512
  if (isa == avx512::kRowOps.isa) return avx512::kRowOps;
#endif
#if HPCATTN_HAVE_AVX2
  if (isa == avx2::kRowOps.isa) return avx2::kRowOps;
#endif
  return generic::kRowOps;
}

const RowOps& row_ops() {
  static const RowOps& chosen = row_ops(kernels().isa);
  return chosen;
}

}  // namespace hpcattn::cpu
