// SPDX-License-Identifier: Apache-2.0
#include "src/testing/rounded_check.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <sstream>

#include "src/cpu/reference/numbers.h"

namespace hpcattn::testkit {

std::uint32_t code_at(const Tensor& tensor, std::initializer_list<std::int64_t> index) {
  std::int64_t offset = 0;
  int dim = 0;
  for (std::int64_t i : index) offset += i * tensor.stride(dim++);
  std::uint32_t code = 0;
  const std::int64_t width = size_bytes(tensor.dtype());
  std::memcpy(&code, tensor.data_as<const char>() + offset * width,
              static_cast<std::size_t>(width));
  return code;
}

std::int64_t ulps_between(std::uint32_t a, std::uint32_t b, DType dtype) {
  const bool a_is_nan = std::isnan(reference::decode(a, dtype));
  const bool b_is_nan = std::isnan(reference::decode(b, dtype));
  if (a_is_nan || b_is_nan)
    return a_is_nan == b_is_nan ? 0 : std::numeric_limits<std::int64_t>::max();
  const std::uint32_t sign = 1U << (8 * size_bytes(dtype) - 1);
  const auto number = [sign](std::uint32_t code) {
    const auto magnitude = static_cast<std::int64_t>(code & (sign - 1));
    return (code & sign) != 0 ? -magnitude : magnitude;
  };
  return std::abs(number(a) - number(b));
}

double largest_of(const std::vector<double>& values, std::size_t begin, std::int64_t count) {
  double largest = 0.0;
  for (std::size_t i = begin; i < begin + static_cast<std::size_t>(count); ++i) {
    largest = std::max(largest, std::fabs(values[i]));
  }
  return largest;
}

void RoundedCheck::add(const Tensor& got, std::initializer_list<std::int64_t> index, double want,
                       double scale) {
  const DType dtype = got.dtype();
  const std::uint32_t code = code_at(got, index);
  const std::int64_t ulps = ulps_between(code, reference::encode(want, dtype), dtype);
  ++num_elements_;
  if (ulps == 0 || std::fabs(reference::decode(code, dtype) - want) <= std::ldexp(scale, -48))
    return;
  ++num_unlike_;
  if (ulps <= worst_ulps_) return;
  worst_ulps_ = ulps;
  std::ostringstream text;
  text.precision(10);
  text << "[";
  for (const std::int64_t& i : index) text << (&i == index.begin() ? "" : ", ") << i;
  text << "] of " << to_string(got) << ": got " << reference::decode(code, dtype) << ", expected "
       << want << ", " << ulps << " ulps away";
  worst_ = text.str();
}

std::string RoundedCheck::failure() const {
  const bool few = num_unlike_ <= 2 + num_elements_ / 100000;
  if (worst_ulps_ <= 1 && (few || nearness_ == Nearness::kWithinUlp)) return "";
  std::ostringstream text;
  text << label_ << ": " << num_unlike_ << " of " << num_elements_
       << " elements are not the right value rounded once; the worst at " << worst_ << "\n";
  return text.str();
}

}  // namespace hpcattn::testkit
