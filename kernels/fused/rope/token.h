// SPDX-License-Identifier: Apache-2.0
// Where a token stands: its request, its positions, its place in the cache.
#pragma once

#include <cstdint>

#include "kernels/fused/rope/params.h"

namespace hpcattn {

/// Thread `index` of `count`, which share this.
inline void clear_counters(const RopeParams& p, std::int64_t index, std::int64_t count) {
  for (; index < p.num_cleared; index += count) p.cleared[index] = 0;
}

/// Where a token's request would be if all were of like lengths; there is one.
constexpr std::int64_t likely_request(std::int64_t token, std::int64_t num_tokens,
                                      std::int64_t num_requests) {
  if (num_requests == num_tokens) return token;
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

/// What was read of a token, before its place in the cache is looked at: what depends on the
/// position alone need not wait for that.
struct TokenLook {
  TokenPlace::Kind kind = TokenPlace::Kind::kLive;
  std::int64_t positions[3] = {};
  bool has_place = false;    // `id` was read
  std::int64_t id = -1;      // as the page table, or the slot mapping, has it
  std::int64_t request = 0;  // the page's:
  std::int64_t entry = 0;
  std::int64_t place = 0;  // in the page
};

/// Reads the page of a request's `place`-th KV token from its row of the page table.
inline void look_into_pages(const RopeParams& p, std::int64_t request, std::int64_t place,
                            std::int64_t kv_len, TokenLook& look) {
  const std::int64_t entry = place < 0 ? -1
                             : place >> 31 == 0
                                 ? p.per_page.divide(static_cast<std::int32_t>(place))
                                 : quotient(place, p.page_size);
  if (entry < 0 || entry >= p.max_pages) {
    report(p.faults, FaultKind::kLength, static_cast<std::int64_t>(LengthKind::kKvLen), request,
           kv_len, p.max_pages * p.page_size);
    return;
  }
  look.has_place = true;
  look.id = p.page_table.at(request, entry);
  look.request = request;
  look.entry = entry;
  look.place = place - entry * p.page_size;
}

constexpr bool is_stored_by_pages(const RopeParams& p) {
  return p.caches[0].data != nullptr && p.slot_mapping.data == nullptr;
}

/// A token of no valid position is reported and not written at all. `stored`: the place in the
/// cache is wanted.
inline TokenLook look_up_token(const RopeParams& p, std::int64_t token, bool stored = true) {
  using Kind = TokenPlace::Kind;
  TokenLook look;
  const auto cu = [&](std::int64_t i) { return p.cu_seqlens_q.at(i); };
  const bool known = p.cu_seqlens_q.data != nullptr;
  const bool through_pages = stored && is_stored_by_pages(p);
  const bool by_length = p.positions.data == nullptr || through_pages;
  if (known && p.num_requests == 0) {
    look.kind = Kind::kPadding;
    return look;
  }
  if (known) {
    // All that is likely to be needed is asked for at once: each look takes as long as the others.
    const std::int64_t likely = likely_request(token, p.num_tokens, p.num_requests);
    const std::int64_t num_live = cu(p.num_requests);
    const std::int64_t begin = cu(likely);
    std::int64_t end = cu(likely + 1);
    std::int64_t kv_len = by_length ? p.kv_lens.at(likely) : 0;
    if (token >= num_live) {
      look.kind = Kind::kPadding;
      return look;
    }
    if (by_length) {
      std::int64_t request = likely;
      if (token < begin || token >= end) {
        request = request_of(cu, token, p.num_tokens, p.num_requests);
        end = cu(request + 1);
        kv_len = p.kv_lens.at(request);
      }
      const std::int64_t place = kv_len - end + token;
      for (std::int64_t& position : look.positions) position = place;
      if (through_pages) look_into_pages(p, request, place, kv_len, look);
    }
  }
  if (p.positions.data != nullptr) {
    for (int axis = 0; axis < 3; ++axis) {
      look.positions[axis] = p.mrope ? p.positions.at(axis, token) : p.positions.at(token);
    }
  }
  if (stored && p.caches[0].data != nullptr && !through_pages) {
    look.has_place = true;
    look.id = p.slot_mapping.at(token);
  }
  for (const std::int64_t position : look.positions) {
    if (position >= 0 && position < p.max_position) continue;
    report(p.faults, FaultKind::kLength, static_cast<std::int64_t>(LengthKind::kPosition), token,
           position, p.max_position - 1);
    look.kind = Kind::kFaulty;
    return look;
  }
  return look;
}

/// The place that was looked up; one outside the pool is reported and becomes none.
inline CachePlace cache_place(const RopeParams& p, std::int64_t token, const TokenLook& look) {
  if (look.kind != TokenPlace::Kind::kLive || !look.has_place) return {};
  if (!is_stored_by_pages(p)) {
    return place_of_slot(token, look.id, p.num_pages, p.page_size, p.faults);
  }
  if (look.id == -1) return {};
  if (look.id < 0 || look.id >= p.num_pages) {
    report(p.faults, FaultKind::kPageId, look.request, look.entry, look.id, p.num_pages);
    return {};
  }
  return {look.id, look.place};
}

/// What contradicts itself is reported: a token of no valid position is not written at all, one of
/// no valid place is not stored.
inline TokenPlace place_of_token(const RopeParams& p, std::int64_t token) {
  const TokenLook look = look_up_token(p, token);
  TokenPlace found{.kind = look.kind, .cache = cache_place(p, token, look)};
  for (int axis = 0; axis < 3; ++axis) found.positions[axis] = look.positions[axis];
  return found;
}

}  // namespace hpcattn
