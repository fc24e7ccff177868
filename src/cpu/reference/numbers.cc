// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/reference/numbers.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace hpcattn::reference {
namespace {

struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int smallest_exponent() const { return 1 - bias(); }
  std::uint32_t sign_bit() const { return 1U << (exponent_bits + mantissa_bits); }
  std::uint32_t all_exponent_bits() const { return ((1U << exponent_bits) - 1U) << mantissa_bits; }
  /// Code of the largest finite number: below infinity, or below the one NaN of e4m3.
  std::uint32_t largest_code() const {
    return has_infinity ? all_exponent_bits() - 1 : sign_bit() - 2;
  }
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return {5, 10, true};
    case DType::kBFloat16: return {8, 7, true};
    case DType::kFloat8E4M3: return {4, 3, false};
    case DType::kFloat8E5M2: return {5, 2, true};
    default: return {8, 23, true};
  }
}

double value_of(std::uint32_t code, const Format& format) {
  const double sign = (code & format.sign_bit()) != 0 ? -1.0 : 1.0;
  const std::uint32_t magnitude = code & (format.sign_bit() - 1);
  if (magnitude > format.largest_code()) {
    const bool infinite = format.has_infinity && magnitude == format.all_exponent_bits();
    return sign * (infinite ? std::numeric_limits<double>::infinity()
                            : std::numeric_limits<double>::quiet_NaN());
  }
  const int exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  const double mantissa = magnitude & ((1U << format.mantissa_bits) - 1U);
  if (exponent == 0) {
    return sign * std::ldexp(mantissa, format.smallest_exponent() - format.mantissa_bits);
  }
  const double implicit_one = std::ldexp(1.0, format.mantissa_bits);
  return sign *
         std::ldexp(implicit_one + mantissa, exponent - format.bias() - format.mantissa_bits);
}

/// Of every code of a format of 8 or 16 bits.
const std::vector<double>& table_of(DType dtype) {
  static const auto make = [](DType of) {
    std::vector<double> table(std::size_t{1} << (8 * size_bytes(of)));
    for (std::size_t code = 0; code < table.size(); ++code) {
      table[code] = value_of(static_cast<std::uint32_t>(code), format_of(of));
    }
    return table;
  };
  static const std::vector<double> float16 = make(DType::kFloat16);
  static const std::vector<double> bfloat16 = make(DType::kBFloat16);
  static const std::vector<double> e4m3 = make(DType::kFloat8E4M3);
  static const std::vector<double> e5m2 = make(DType::kFloat8E5M2);
  switch (dtype) {
    case DType::kFloat16: return float16;
    case DType::kBFloat16: return bfloat16;
    case DType::kFloat8E4M3: return e4m3;
    default: return e5m2;
  }
}

char* address(const Tensor& tensor, std::initializer_list<std::int64_t> index) {
  std::int64_t offset = 0;
  int dim = 0;
  for (std::int64_t i : index) offset += i * tensor.stride(dim++);
  return static_cast<char*>(tensor.data()) + offset * size_bytes(tensor.dtype());
}

}  // namespace

double decode(std::uint32_t code, DType dtype) {
  if (dtype == DType::kFloat32) return std::bit_cast<float>(code);
  return table_of(dtype)[code];
}

std::uint32_t encode(double value, DType dtype) {
  if (dtype == DType::kFloat32) return std::bit_cast<std::uint32_t>(static_cast<float>(value));
  const Format format = format_of(dtype);
  const std::uint32_t sign = std::signbit(value) ? format.sign_bit() : 0U;
  if (std::isnan(value)) return sign | (format.sign_bit() - 1);
  const std::uint32_t overflow = is_fp8(dtype) ? format.largest_code() : format.all_exponent_bits();
  const double magnitude = std::fabs(value);
  if (std::isinf(value)) return sign | overflow;
  if (magnitude == 0.0) return sign;
  int exponent = std::ilogb(magnitude);
  if (exponent < format.smallest_exponent()) exponent = format.smallest_exponent();
  // In units of the last mantissa bit; nearbyint rounds ties to even.
  double units = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  const double next_binade = std::ldexp(2.0, format.mantissa_bits);
  if (units >= next_binade) {
    units /= 2.0;
    ++exponent;
  }
  const double implicit_one = std::ldexp(1.0, format.mantissa_bits);
  const auto whole = static_cast<std::uint64_t>(units);
  if (units < implicit_one) return sign | static_cast<std::uint32_t>(whole);  // subnormal
  const std::uint64_t code =
      (static_cast<std::uint64_t>(exponent + format.bias()) << format.mantissa_bits) +
      (whole - static_cast<std::uint64_t>(implicit_one));
  return sign | (code > format.largest_code() ? overflow : static_cast<std::uint32_t>(code));
}

double element(const Tensor& tensor, std::initializer_list<std::int64_t> index) {
  std::uint32_t code = 0;
  std::memcpy(&code, address(tensor, index), static_cast<std::size_t>(size_bytes(tensor.dtype())));
  return decode(code, tensor.dtype());
}

std::int64_t integer(const Tensor& tensor, std::initializer_list<std::int64_t> index) {
  if (tensor.dtype() == DType::kInt64) {
    std::int64_t value = 0;
    std::memcpy(&value, address(tensor, index), sizeof(value));
    return value;
  }
  std::int32_t value = 0;
  std::memcpy(&value, address(tensor, index), sizeof(value));
  return value;
}

void set_element(const Tensor& tensor, std::initializer_list<std::int64_t> index, double value) {
  const std::uint32_t code = encode(value, tensor.dtype());
  std::memcpy(address(tensor, index), &code, static_cast<std::size_t>(size_bytes(tensor.dtype())));
}

double unit_roundoff(DType dtype) { return std::ldexp(1.0, -format_of(dtype).mantissa_bits - 1); }

double smallest(DType dtype) { return decode(1, dtype); }

double largest(DType dtype) { return decode(format_of(dtype).largest_code(), dtype); }

}  // namespace hpcattn::reference
