// SPDX-License-Identifier: Apache-2.0
// Eight neighbouring numbers of a row: what a lane loads, converts and stores at once. Plain C++
// that the host compiles too, so that every conversion is tested there; on the device, instructions
// take the place of the bit arithmetic where the architecture has them.
#pragma once

#include <bit>
#include <cstdint>

#include "hpcattn/dtype_id.h"
#include "kernels/tile/unroll.h"
#include "src/common/float_bits.h"

#ifdef __CUDACC_RTC__
#include "kernels/ptx/convert.h"
#include "kernels/ptx/math.h"
#endif

namespace hpcattn {

/// 16 bytes of a 16-bit dtype.
inline constexpr int kLaneElements = 8;

/// The codes of kLaneElements numbers, packed as in memory.
template <int kElementBytes>
struct LaneCodes {
  static constexpr int kWords = kLaneElements * kElementBytes / 4;
  static constexpr int kPerWord = 4 / kElementBytes;
  std::uint32_t words[unsigned{kWords}];

  constexpr std::uint32_t code(int i) const {
    if constexpr (kElementBytes == 4) {
      return words[i];
    } else {
      constexpr std::uint32_t kMask = (1U << (8 * kElementBytes)) - 1;
      return (words[i / kPerWord] >> (i % kPerWord * 8 * kElementBytes)) & kMask;
    }
  }
};

template <DType kDType>
using LaneCodesOf = LaneCodes<static_cast<int>(size_bytes(kDType))>;

// --- memory

/// An aligned access of several words, one instruction.
template <int kWords>
struct alignas(4 * kWords) WordGroup {
  std::uint32_t words[unsigned{kWords}];
};

/// The first `count` codes of a row's piece, the others 0. `vectors`: all pieces of the tensor lie
/// on multiples of their size, or of 16 bytes.
template <int kElementBytes>
inline LaneCodes<kElementBytes> load_codes(const char* from, int count, bool vectors) {
  using Codes = LaneCodes<kElementBytes>;
  constexpr int kGroup = Codes::kWords < 4 ? Codes::kWords : 4;
  Codes codes{};
  if (vectors && count == kLaneElements) {
    HPCATTN_UNROLL
    for (int i = 0; i < Codes::kWords; i += kGroup) {
      const auto group = *reinterpret_cast<const WordGroup<kGroup>*>(from + 4 * i);
      HPCATTN_UNROLL
      for (int j = 0; j < kGroup; ++j) codes.words[i + j] = group.words[j];
    }
    return codes;
  }
  HPCATTN_UNROLL
  for (int i = 0; i < kLaneElements; ++i) {
    if (i >= count) continue;
    const char* at = from + i * kElementBytes;
    std::uint32_t code;
    if constexpr (kElementBytes == 1) code = *reinterpret_cast<const std::uint8_t*>(at);
    if constexpr (kElementBytes == 2) code = *reinterpret_cast<const std::uint16_t*>(at);
    if constexpr (kElementBytes == 4) code = *reinterpret_cast<const std::uint32_t*>(at);
    codes.words[i / Codes::kPerWord] |= code << (i % Codes::kPerWord * 8 * kElementBytes);
  }
  return codes;
}

/// Writes the first `count` codes and nothing else.
template <int kElementBytes>
inline void store_codes(const LaneCodes<kElementBytes>& codes, char* to, int count, bool vectors) {
  using Codes = LaneCodes<kElementBytes>;
  constexpr int kGroup = Codes::kWords < 4 ? Codes::kWords : 4;
  if (vectors && count == kLaneElements) {
    HPCATTN_UNROLL
    for (int i = 0; i < Codes::kWords; i += kGroup) {
      WordGroup<kGroup> group;
      HPCATTN_UNROLL
      for (int j = 0; j < kGroup; ++j) group.words[j] = codes.words[i + j];
      *reinterpret_cast<WordGroup<kGroup>*>(to + 4 * i) = group;
    }
    return;
  }
  HPCATTN_UNROLL
  for (int i = 0; i < kLaneElements; ++i) {
    if (i >= count) continue;
    char* at = to + i * kElementBytes;
    const std::uint32_t code = codes.code(i);
    if constexpr (kElementBytes == 1) *reinterpret_cast<std::uint8_t*>(at) = std::uint8_t(code);
    if constexpr (kElementBytes == 2) *reinterpret_cast<std::uint16_t*>(at) = std::uint16_t(code);
    if constexpr (kElementBytes == 4) *reinterpret_cast<std::uint32_t*>(at) = code;
  }
}

// --- numbers

/// The number that a code stands for: exact, float32 holds every format.
template <DType kDType>
constexpr float decode(std::uint32_t code) {
  static_assert(is_float(kDType));
  if constexpr (kDType == DType::kFloat32) return std::bit_cast<float>(code);
  if constexpr (kDType == DType::kBFloat16) return std::bit_cast<float>(code << 16);
  if constexpr (kDType == DType::kFloat8E4M3) return Float8E4M3::decode(code);
  if constexpr (kDType == DType::kFloat8E5M2) return Float8E5M2::decode(code);
  if constexpr (kDType == DType::kFloat16) {
#ifdef __CUDACC_RTC__
    return ptx::float16_to_float(code);
#else
    return Float16::decode(code);
#endif
  }
}

template <DType kDType>
inline void decode(const LaneCodesOf<kDType>& codes, float (&x)[kLaneElements]) {
  HPCATTN_UNROLL
  for (int i = 0; i < kLaneElements; ++i) x[i] = decode<kDType>(codes.code(i));
}

/// Cut to 24 bits, of which the last is set where anything was cut: rounded to odd. A second
/// rounding, to fewer bits, then gives what one rounding gives, ties included.
inline float round_to_odd(double value) {
  constexpr std::uint32_t kCut = (1U << 29) - 1;
  const auto bits = std::bit_cast<std::uint64_t>(value);
  auto low = static_cast<std::uint32_t>(bits);
  low = (low & ~kCut) | ((low & kCut) != 0 ? kCut + 1 : 0U);
  return static_cast<float>(std::bit_cast<double>((bits & ~std::uint64_t{0xffffffffU}) | low));
}

/// Two codes, `low` in the lower bits: rounded to nearest even; fp8 saturates, float16 overflows to
/// infinity; NaN stays NaN.
template <DType kDType>
inline std::uint32_t encode_pair(float low, float high) {
#ifdef __CUDACC_RTC__
  if constexpr (size_bytes(kDType) == 2) return ptx::pack2<kDType>(low, high);
#if __CUDA_ARCH__ >= 890
  if constexpr (is_fp8(kDType)) return ptx::pack2_fp8<kDType>(low, high);
#endif
#endif
  const auto encode = [](float value) -> std::uint32_t {
    if constexpr (kDType == DType::kBFloat16) return float_to_bfloat16(value);
    if constexpr (kDType == DType::kFloat16) return Float16::encode<false>(value);
    if constexpr (kDType == DType::kFloat8E4M3) return Float8E4M3::encode<true>(value);
    return Float8E5M2::encode<true>(value);
  };
  return encode(low) | encode(high) << (8 * size_bytes(kDType));
}

/// Rounds once from float64; numbers below float32's normal ones: within an ulp.
template <DType kDType>
inline LaneCodesOf<kDType> encode(const double (&x)[kLaneElements]) {
  LaneCodesOf<kDType> codes{};
  if constexpr (kDType == DType::kFloat32) {
    HPCATTN_UNROLL
    for (int i = 0; i < kLaneElements; ++i) {
      codes.words[i] = std::bit_cast<std::uint32_t>(static_cast<float>(x[i]));
    }
  } else {
    constexpr int kPerWord = LaneCodesOf<kDType>::kPerWord;
    HPCATTN_UNROLL
    for (int i = 0; i < kLaneElements; i += 2) {
      const std::uint32_t pair = encode_pair<kDType>(round_to_odd(x[i]), round_to_odd(x[i + 1]));
      codes.words[i / kPerWord] |= pair << (i % kPerWord * 8 * size_bytes(kDType));
    }
  }
  return codes;
}

/// Rounds from float32.
template <DType kDType>
inline LaneCodesOf<kDType> encode(const float (&x)[kLaneElements]) {
  static_assert(kDType != DType::kFloat32);
  LaneCodesOf<kDType> codes{};
  constexpr int kPerWord = LaneCodesOf<kDType>::kPerWord;
  HPCATTN_UNROLL
  for (int i = 0; i < kLaneElements; i += 2) {
    const std::uint32_t pair = encode_pair<kDType>(x[i], x[i + 1]);
    codes.words[i / kPerWord] |= pair << (i % kPerWord * 8 * size_bytes(kDType));
  }
  return codes;
}

// --- both, the dtype known at run time

/// Loads `count` numbers; the others become 0.
inline void load_numbers(const char* from, DType dtype, int count, bool vectors,
                         float (&x)[kLaneElements]) {
  switch (dtype) {
    case DType::kFloat16: return decode<DType::kFloat16>(load_codes<2>(from, count, vectors), x);
    case DType::kBFloat16: return decode<DType::kBFloat16>(load_codes<2>(from, count, vectors), x);
    case DType::kFloat8E4M3:
      return decode<DType::kFloat8E4M3>(load_codes<1>(from, count, vectors), x);
    case DType::kFloat8E5M2:
      return decode<DType::kFloat8E5M2>(load_codes<1>(from, count, vectors), x);
    default: return decode<DType::kFloat32>(load_codes<4>(from, count, vectors), x);
  }
}

/// Rounds and stores `count` numbers.
inline void store_numbers(const double (&x)[kLaneElements], char* to, DType dtype, int count,
                          bool vectors) {
  switch (dtype) {
    case DType::kFloat16: return store_codes(encode<DType::kFloat16>(x), to, count, vectors);
    case DType::kBFloat16: return store_codes(encode<DType::kBFloat16>(x), to, count, vectors);
    case DType::kFloat8E4M3: return store_codes(encode<DType::kFloat8E4M3>(x), to, count, vectors);
    case DType::kFloat8E5M2: return store_codes(encode<DType::kFloat8E5M2>(x), to, count, vectors);
    default: return store_codes(encode<DType::kFloat32>(x), to, count, vectors);
  }
}

}  // namespace hpcattn
