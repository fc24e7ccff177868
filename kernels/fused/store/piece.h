// SPDX-License-Identifier: Apache-2.0
// One thread's part of store_kv: eight neighbouring numbers of one head of K or V.
#pragma once

#include <cstdint>

#include "kernels/fused/store/config.h"
#include "kernels/fused/store/params.h"
#include "kernels/tile/convert.h"

namespace hpcattn {

constexpr std::int64_t num_store_pieces(const StoreParams& p) {
  return p.num_tokens * 2 * p.num_heads * p.pieces;
}

/// Pieces are numbered by token, then K before V, head, and place in the row.
template <StoreSpec kSpec>
inline void store_piece(const StoreParams& p, std::int64_t index) {
  const std::int32_t of_token = 2 * p.num_heads * p.pieces;
  const std::int64_t token = quotient(index, of_token);
  const auto within = static_cast<std::int32_t>(index - token * of_token);
  const std::int32_t row = within / p.pieces;
  const std::int32_t piece = within - row * p.pieces;
  const std::int32_t side = row >= p.num_heads ? 1 : 0;
  const std::int32_t head = row - side * p.num_heads;

  const CachePlace place =
      place_of_slot(token, p.slots.at(token), p.num_pages, p.page_size, p.faults);
  if (place.page < 0) return;
  const RowsView& input = p.inputs[side];
  const CacheView& cache = p.caches[side];
  constexpr auto kFromBytes = static_cast<int>(size_bytes(kSpec.dtype));
  constexpr auto kToBytes = static_cast<int>(size_bytes(kSpec.cache_dtype));
  const std::int32_t first = piece * kLaneElements;
  const auto codes = load_codes<kFromBytes>(input.row(token, head) + first * kFromBytes,
                                            kLaneElements, input.vectors);
  char* to = cache.row(place.page, place.place, head) + first * kToBytes;
  if constexpr (kSpec.dtype == kSpec.cache_dtype) {
    store_codes(codes, to, kLaneElements, cache.vectors);
  } else {
    float x[kLaneElements];
    decode<kSpec.dtype>(codes, x);
    const double scale = p.scales[side].at(head);
    const double inverse = 1.0 / scale;
    double y[kLaneElements];
    HPCATTN_UNROLL
    for (int i = 0; i < kLaneElements; ++i) y[i] = divided(x[i], scale, inverse);
    store_codes(encode<kSpec.cache_dtype>(y), to, kLaneElements, cache.vectors);
  }
}

}  // namespace hpcattn
