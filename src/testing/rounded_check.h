// SPDX-License-Identifier: Apache-2.0
// Judging numbers that were computed exactly enough to be "the right value, rounded once".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hpcattn/tensor.h"

namespace hpcattn::testkit {

/// How near a result must be to its float64 value.
enum class Nearness : std::uint8_t {
  kRoundedOnce,  // that value, rounded; a second rounding on the way would show
  kWithinUlp,    // at most one ulp of the dtype away from that
};

/// Collects elements. Each must be within one ulp of its float64 value rounded to the dtype, and
/// with Nearness::kRoundedOnce all but two, or one in 100,000, must be that value.
class RoundedCheck {
 public:
  explicit RoundedCheck(std::string label, Nearness nearness = Nearness::kRoundedOnce)
      : label_(std::move(label)), nearness_(nearness) {}

  /// `scale`: of the numbers that `want` was made from. Where they cancel, float64 leaves some
  /// 2^-50 of them in the place of a smaller number or of 0; that much is right too.
  void add(const Tensor& got, std::initializer_list<std::int64_t> index, double want,
           double scale = 0.0);

  /// "" when all is well, else how many are wrong and the worst of them.
  std::string failure() const;

 private:
  std::string label_;
  Nearness nearness_;
  std::string worst_;
  std::int64_t worst_ulps_ = 0;
  std::int64_t num_elements_ = 0;
  std::int64_t num_unlike_ = 0;
};

/// max |values[begin + i]| over i < count.
double largest_of(const std::vector<double>& values, std::size_t begin, std::int64_t count);

/// How many numbers of the dtype lie between two codes; 0 for two NaN, very many for NaN and a
/// number.
std::int64_t ulps_between(std::uint32_t a, std::uint32_t b, DType dtype);

/// The bits of element [index...] of a float tensor.
std::uint32_t code_at(const Tensor& tensor, std::initializer_list<std::int64_t> index);

}  // namespace hpcattn::testkit
