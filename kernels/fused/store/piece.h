// SPDX-License-Identifier: Apache-2.0
// One thread's part of store_kv: eight neighbouring numbers of one head of K or V.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/fused/store/config.h"
#include "kernels/fused/store/params.h"
#include "kernels/tile/convert.h"

namespace hpcattn {

constexpr std::int64_t num_store_pieces(const StoreParams& p) {
  return p.num_tokens * 2 * p.num_heads * p.pieces;
}

/// `quotient`, within an ulp of x / by (by over 0), to the odd one of the two float32 numbers
/// around x / by, if it is neither: rounded once more, to fewer bits, it is then what x / by rounds
/// to. Scales like 0.1 have many quotients within half an ulp of a tie of fp8.
inline float quotient_to_odd(float quotient, float x, float by) {
  const float rest = fmaf(-quotient, by, x);  // exact
  auto bits = std::bit_cast<std::uint32_t>(quotient);
  if (fabsf(rest) > 0.0F && fabsf(quotient) > 0.0F && (bits & 1U) == 0) {
    bits += (rest > 0.0F) == (quotient > 0.0F) ? 1U : 0xffffffffU;
  }
  return std::bit_cast<float>(bits);
}

/// x / scale, rounded once.
template <DType kTo>
inline LaneCodesOf<kTo> divided_codes(const float (&x)[kLaneElements], float scale) {
  const float shift = shift_of_scale(scale);
  const float divisor = scale * shift;
  const float inverse = 1.0F / divisor;
  float quotients[kLaneElements];
  HPCATTN_UNROLL
  for (int i = 0; i < kLaneElements; ++i) {
    const float shifted = x[i] * shift;
    const float near = shifted * inverse;
    const float corrected = fmaf(fmaf(-near, divisor, shifted), inverse, near);
    // An infinity has no remainder.
    quotients[i] = corrected == corrected ? quotient_to_odd(corrected, shifted, divisor) : near;
  }
  return encode<kTo>(quotients);
}

/// Pieces are numbered by token, then K before V, head, and place in the row.
template <StoreSpec kSpec>
inline void store_piece(const StoreParams& p, std::int64_t index) {
  const auto of_token = static_cast<std::int32_t>(p.per_token.divisor);
  const std::int64_t token = index >> 31 == 0 ? p.per_token.divide(static_cast<std::int32_t>(index))
                                              : quotient(index, of_token);
  const auto within = static_cast<std::int32_t>(index - token * of_token);
  const std::int32_t row = p.per_row.divide(within);
  const std::int32_t piece = within - row * p.pieces;
  const std::int32_t side = row >= p.num_heads ? 1 : 0;
  const std::int32_t head = row - side * p.num_heads;

  const RowsView& input = p.inputs[side];
  const CacheView& cache = p.caches[side];
  constexpr auto kFromBytes = static_cast<int>(size_bytes(kSpec.dtype));
  constexpr auto kToBytes = static_cast<int>(size_bytes(kSpec.cache_dtype));
  const std::int32_t first = piece * kLaneElements;
  const auto codes = load_codes<kFromBytes>(input.row(token, head) + first * kFromBytes,
                                            kLaneElements, input.vectors);
  // The piece is on its way while the slot is looked up.
  const CachePlace place =
      place_of_slot(token, p.slots.at(token), p.num_pages, p.page_size, p.faults);
  if (place.page < 0) return;
  char* to = cache.row(place.page, place.place, head) + first * kToBytes;
  if constexpr (kSpec.dtype == kSpec.cache_dtype) {
    store_codes(codes, to, kLaneElements, cache.vectors);
  } else {
    float x[kLaneElements];
    decode<kSpec.dtype>(codes, x);
    const auto quotients = divided_codes<kSpec.cache_dtype>(x, p.scales[side].at(head));
    store_codes(quotients, to, kLaneElements, cache.vectors);
  }
}

}  // namespace hpcattn
