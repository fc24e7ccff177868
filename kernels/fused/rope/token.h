// SPDX-License-Identifier: Apache-2.0
// Where a token stands: its request, its positions, its place in the cache.
#pragma once

#include <cstdint>

#include "kernels/fused/rope/params.h"

namespace hpcattn {

/// Where a token's request would be if all were of like lengths; there is one.
constexpr std::int64_t likely_request(std::int64_t token, std::int64_t num_tokens,
                                      std::int64_t num_requests) {
  const std::int64_t guess = quotient(token * num_requests, num_tokens);
  return guess < num_requests ? guess : num_requests - 1;
}

/// The request r with cu[r] <= token < cu[r + 1]. `cu` has entries 0 to num_requests, does not
/// fall, and cu[num_requests] > token. Batches of requests of like lengths are found at the first
/// look.
template <typename Cu>
constexpr std::int64_t request_of(const Cu& cu, std::int64_t token, std::int64_t num_tokens,
                                  std::int64_t num_requests) {
  const std::int64_t guess = likely_request(token, num_tokens, num_requests);
  if (cu(guess) <= token && token < cu(guess + 1)) return guess;
  std::int64_t low = 0;  // cu[low] <= token
  std::int64_t high = num_requests;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (cu(middle) <= token ? low : high) = middle;
  }
  return low;
}

struct TokenPlace {
  enum class Kind : std::uint8_t { kLive, kPadding, kFaulty };
  Kind kind = Kind::kLive;
  std::int64_t positions[3] = {};
  CachePlace cache;
};

/// The page of a request's `place`-th KV token, as its row of the page table has it.
inline CachePlace place_in_pages(const RopeParams& p, std::int64_t request, std::int64_t place,
                                 std::int64_t kv_len) {
  const std::int64_t entry = place < 0 ? -1 : quotient(place, p.page_size);
  if (entry < 0 || entry >= p.max_pages) {
    report(p.faults, FaultKind::kLength, static_cast<std::int64_t>(LengthKind::kKvLen), request,
           kv_len, p.max_pages * p.page_size);
    return {};
  }
  const std::int64_t page = p.page_table.at(request, entry);
  if (page == -1) return {};
  if (page < 0 || page >= p.num_pages) {
    report(p.faults, FaultKind::kPageId, request, entry, page, p.num_pages);
    return {};
  }
  return {page, place - entry * p.page_size};
}

/// What contradicts itself is reported: a token of no valid position is not written at all, one of
/// no valid place is not stored. `stored`: the place in the cache is wanted.
inline TokenPlace place_of_token(const RopeParams& p, std::int64_t token, bool stored = true) {
  using Kind = TokenPlace::Kind;
  TokenPlace found;
  const auto cu = [&](std::int64_t i) { return p.cu_seqlens_q.at(i); };
  const bool known = p.cu_seqlens_q.data != nullptr;
  const bool through_pages =
      stored && p.caches[0].data != nullptr && p.slot_mapping.data == nullptr;
  const bool by_length = p.positions.data == nullptr || through_pages;
  if (known && p.num_requests == 0) {
    found.kind = Kind::kPadding;
    return found;
  }
  if (known) {
    // All that is likely to be needed is asked for at once: each look takes as long as the others.
    const std::int64_t likely = likely_request(token, p.num_tokens, p.num_requests);
    const std::int64_t num_live = cu(p.num_requests);
    const std::int64_t begin = cu(likely);
    std::int64_t end = cu(likely + 1);
    std::int64_t kv_len = by_length ? p.kv_lens.at(likely) : 0;
    if (token >= num_live) {
      found.kind = Kind::kPadding;
      return found;
    }
    if (by_length) {
      std::int64_t request = likely;
      if (token < begin || token >= end) {
        request = request_of(cu, token, p.num_tokens, p.num_requests);
        end = cu(request + 1);
        kv_len = p.kv_lens.at(request);
      }
      const std::int64_t place = kv_len - end + token;
      for (std::int64_t& position : found.positions) position = place;
      if (through_pages) found.cache = place_in_pages(p, request, place, kv_len);
    }
  }
  if (p.positions.data != nullptr) {
    for (int axis = 0; axis < 3; ++axis) {
      found.positions[axis] = p.mrope ? p.positions.at(axis, token) : p.positions.at(token);
    }
  }
  for (const std::int64_t position : found.positions) {
    if (position >= 0 && position < p.max_position) continue;
    report(p.faults, FaultKind::kLength, static_cast<std::int64_t>(LengthKind::kPosition), token,
           position, p.max_position - 1);
    found.kind = Kind::kFaulty;
    return found;
  }
  if (stored && p.caches[0].data != nullptr && !through_pages) {
    found.cache =
        place_of_slot(token, p.slot_mapping.at(token), p.num_pages, p.page_size, p.faults);
  }
  return found;
}

}  // namespace hpcattn
