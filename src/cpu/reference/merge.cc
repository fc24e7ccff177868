// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/reference/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/cpu/reference/numbers.h"

namespace hpcattn::reference {

MergeResult merge_partials(const MergeArgs& args) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor& first = args.partials.front();
  MergeResult result;
  for (std::int64_t token = 0; token < first.size(0); ++token) {
    for (std::int64_t head = 0; head < first.size(1); ++head) {
      double largest = -infinity;
      for (const Tensor& lse : args.lses) largest = std::max(largest, element(lse, {token, head}));
      double sum = 0.0;
      for (const Tensor& lse : args.lses) {
        const double value = element(lse, {token, head});
        if (value != -infinity) sum += std::exp(value - largest);
      }
      result.lse.push_back(sum == 0.0 ? -infinity : largest + std::log(sum));
      for (std::int64_t d = 0; d < first.size(2); ++d) {
        double out = 0.0;
        double magnitude = 0.0;
        for (std::size_t s = 0; s < args.partials.size(); ++s) {
          const double lse = element(args.lses[s], {token, head});
          if (lse == -infinity) continue;
          const double term =
              std::exp(lse - largest) / sum * element(args.partials[s], {token, head, d});
          out += term;
          magnitude += std::fabs(term);
        }
        result.out.push_back(out);
        result.out_magnitude.push_back(magnitude);
      }
    }
  }
  return result;
}

}  // namespace hpcattn::reference
