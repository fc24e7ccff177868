// SPDX-License-Identifier: Apache-2.0
// The entry that libFuzzer calls: CXX=clang++, -DHPCATTN_BUILD_FUZZ=ON,
// -DHPCATTN_SANITIZE=address,fuzzer-no-link, target hpcattn_libfuzzer.
#include <cstdio>
#include <cstdlib>

#include "fuzz/operators.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const hpcattn::fuzz::Result result = hpcattn::fuzz::run_input(data, size);
  if (result.outcome != hpcattn::fuzz::Outcome::kFault) return 0;
  std::fprintf(stderr, "%s: %s\n", hpcattn::fuzz::kOperatorNames[std::size_t(result.op)],
               result.message.c_str());
  std::abort();
}
