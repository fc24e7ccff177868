// SPDX-License-Identifier: Apache-2.0
// Tensors as the kernels of this folder see them. Plain C++, filled by src/cuda/views.cc. Strides
// count bytes, of 64 bits: a pool may have more than 2^31 elements.
#pragma once

#include <cmath>
#include <cstdint>

#include "hpcattn/dtype_id.h"
#include "kernels/tile/fault.h"

namespace hpcattn {

/// [num_tokens, num_heads, head_dim]
struct RowsView {
  char* data = nullptr;  // null: not given
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  DType dtype = DType::kFloat32;
  bool vectors = false;  // every piece of 8 elements is aligned for accesses of 16 (fp8: 8) bytes

  constexpr char* row(std::int64_t token, std::int64_t head) const {
    return data + token * token_stride + head * head_stride;
  }
};

/// [num_pages, page_size, num_kv_heads, head_dim]
struct CacheView {
  char* data = nullptr;
  std::int64_t page_stride = 0;
  std::int64_t place_stride = 0;
  std::int64_t head_stride = 0;
  DType dtype = DType::kFloat32;
  bool vectors = false;

  constexpr char* row(std::int64_t page, std::int64_t place, std::int64_t head) const {
    return data + page * page_stride + place * place_stride + head * head_stride;
  }
};

/// [n] or [n, m] of int32 or int64
struct IndexView {
  const char* data = nullptr;
  std::int64_t strides[2] = {};
  bool wide = false;  // int64

  std::int64_t at(std::int64_t i, std::int64_t j = 0) const {
    const char* from = data + i * strides[0] + j * strides[1];
    return wide ? *reinterpret_cast<const std::int64_t*>(from)
                : std::int64_t{*reinterpret_cast<const std::int32_t*>(from)};
  }
};

/// A float32 for each head, or one for all: stride 0.
struct ScaleView {
  const char* data = nullptr;
  std::int64_t stride = 0;

  float at(std::int64_t head) const {
    return data == nullptr ? 1.0F : *reinterpret_cast<const float*>(data + head * stride);
  }
};

/// Where a token's K and V go; page -1: nowhere.
struct CachePlace {
  std::int64_t page = -1;
  std::int64_t place = 0;
};

/// a / b of numbers of 0 or more; nearly all fit the short division, and the long one is a call.
constexpr std::int64_t quotient(std::int64_t a, std::int64_t b) {
  if (((a | b) >> 32) == 0) return std::uint32_t(a) / std::uint32_t(b);
  return a / b;
}

/// The number that an fp8 store keeps: x / scale, rounded as one division rounds. Not a product
/// with 1 / scale alone, which is off by an ulp where the quotient is a tie of the narrow format.
inline double divided(double x, double scale, double inverse) {
  const double near = x * inverse;
  const double corrected = std::fma(std::fma(-near, scale, x), inverse, near);
  return corrected == corrected ? corrected : near;  // an infinity has no remainder
}

/// A power of two that a scale and the numbers over it are multiplied with, so that the scale's
/// reciprocal is a normal float32.
constexpr float shift_of_scale(float scale) {
  return scale < 0x1p-60F ? 0x1p64F : scale > 0x1p60F ? 0x1p-64F : 1.0F;
}

/// Reports what a kernel found wrong; the host's version serves tests.
inline void report(Fault* box, FaultKind kind, std::int64_t a, std::int64_t b, std::int64_t c,
                   std::int64_t d) {
#ifdef __CUDACC_RTC__
  report_fault(box, kind, a, b, c, d);
#else
  if (box->claimed++ == 0) *box = {static_cast<std::int32_t>(kind), 1, {a, b, c, d}};
#endif
}

/// What the first value of a FaultKind::kLength says.
enum class LengthKind : std::int64_t { kCuSeqlens = 0, kKvLen = 1, kSlot = 2, kPosition = 3 };

/// The place of a slot; one outside the pool is reported and becomes none.
inline CachePlace place_of_slot(std::int64_t token, std::int64_t slot, std::int64_t num_pages,
                                std::int64_t page_size, Fault* faults) {
  if (slot == -1) return {};
  if (slot < 0 || slot >= num_pages * page_size) {
    report(faults, FaultKind::kLength, static_cast<std::int64_t>(LengthKind::kSlot), token, slot,
           num_pages * page_size - 1);
    return {};
  }
  const std::int64_t page = quotient(slot, page_size);
  return {page, slot - page * page_size};
}

}  // namespace hpcattn
