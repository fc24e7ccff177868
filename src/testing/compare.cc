// SPDX-License-Identifier: Apache-2.0
#include "src/testing/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>

#include "src/cpu/reference/numbers.h"
#include "src/testing/guarded_tensor.h"

namespace hpcattn::testkit {
namespace {

std::uint32_t code_at(const Tensor& tensor, const std::vector<std::int64_t>& index) {
  std::uint32_t code = 0;
  const std::int64_t width = size_bytes(tensor.dtype());
  std::memcpy(&code, static_cast<const char*>(tensor.data()) + offset_of(tensor, index) * width,
              static_cast<std::size_t>(width));
  return code;
}

std::string coordinates(const std::vector<std::int64_t>& index) {
  std::ostringstream text;
  text << '[';
  for (std::size_t dim = 0; dim < index.size(); ++dim) text << (dim > 0 ? ", " : "") << index[dim];
  text << ']';
  return text.str();
}

/// How many bounds the element is away; above 1 is wrong.
double distance(double got, double want, double bound) {
  if (got == want || (std::isnan(got) && std::isnan(want))) return 0.0;
  const double error = std::fabs(got - want);
  if (!std::isfinite(error)) return std::numeric_limits<double>::infinity();
  return bound > 0.0 ? error / bound : std::numeric_limits<double>::infinity();
}

}  // namespace

std::string compare(const Tensor& got, const std::vector<double>& want,
                    const std::vector<double>& bound, const std::string& label) {
  double worst = -1.0;
  std::int64_t num_wrong = 0;
  std::ostringstream text;
  text.precision(9);
  for_each_index(got, [&](const std::vector<std::int64_t>& index, std::int64_t number) {
    const auto at = static_cast<std::size_t>(number);
    const double value = reference::decode(code_at(got, index), got.dtype());
    const double far = distance(value, want[at], bound[at]);
    if (far > 1.0) ++num_wrong;
    if (far <= worst) return;
    worst = far;
    text.str("");
    text << coordinates(index) << ": got " << value << ", expected " << want[at] << " within "
         << bound[at];
  });
  if (num_wrong == 0) return "";
  std::ostringstream report;
  report << label << ": " << num_wrong << " of " << got.num_elements() << " elements of "
         << to_string(got) << " are wrong; the worst at " << text.str() << " (" << worst
         << " bounds away)";
  return report.str();
}

std::string compare_bits(const Tensor& got, const Tensor& want, const std::string& label) {
  std::ostringstream report;
  std::int64_t num_wrong = 0;
  for_each_index(got, [&](const std::vector<std::int64_t>& index, std::int64_t) {
    const std::uint32_t code = code_at(got, index);
    const std::uint32_t wanted = code_at(want, index);
    if (code == wanted || num_wrong++ > 0) return;
    report << coordinates(index) << ": got " << reference::decode(code, got.dtype()) << " (0x"
           << std::hex << code << "), expected " << reference::decode(wanted, want.dtype())
           << " (0x" << wanted << ")";
  });
  if (num_wrong == 0) return "";
  return label + ": " + std::to_string(num_wrong) + " elements of " + to_string(got) +
         " differ in their bits; the first at " + report.str();
}

double rounded_bound(double want, double error, DType dtype) {
  return error + reference::unit_roundoff(dtype) * (std::fabs(want) + error) * 1.0001 +
         reference::smallest(dtype) / 2;
}

}  // namespace hpcattn::testkit
