// SPDX-License-Identifier: Apache-2.0
// Division by a number that is known at launch: a multiply and a shift in place of some 20
// instructions. (Granlund and Montgomery, Division by Invariant Integers using Multiplication,
// 1994.)
#pragma once

#include <cstdint>

namespace hpcattn {

/// For dividends from 0 to 2^31 - 1 and divisors from 1 to 2^31 - 1.
struct FastDivide {
  std::uint32_t divisor = 1;
  std::uint32_t multiplier = 0;  // ceil(2^(32 + shift - 1) / divisor), 0 for a divisor of 1
  std::uint32_t shift = 0;       // ceil(log2(divisor)) - 1

  constexpr FastDivide() = default;
  constexpr explicit FastDivide(std::uint32_t d) : divisor(d) {
    if (d <= 1) return;
    std::uint32_t log2 = 0;
    while ((std::uint64_t{1} << log2) < d) ++log2;
    shift = log2 - 1;
    const std::uint64_t power = std::uint64_t{1} << (31 + log2);
    multiplier = static_cast<std::uint32_t>((power + d - 1) / d);
  }

  constexpr std::int32_t divide(std::int32_t n) const {
    if (divisor == 1) return n;
    const std::uint64_t product = static_cast<std::uint64_t>(n) * multiplier;
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(product >> 32) >> shift);
  }
};

}  // namespace hpcattn
