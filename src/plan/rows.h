// SPDX-License-Identifier: Apache-2.0
// Which KV tokens a row sees. One place for the bounds of causal, windowed and bidirectional masks;
// constexpr, for the host and the device.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hpcattn::plan {

/// KV tokens [begin, end); empty where end <= begin.
struct KvRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  friend bool operator==(const KvRange&, const KvRange&) = default;
};

struct Mask {
  bool causal = true;
  std::int64_t window = 0;  // KV tokens that a row sees, its own included; 0: no window
};

/// A query token at `position` (= kv_len - num_query_tokens + its index; negative where there are
/// fewer KV tokens than query tokens), among kv_len KV tokens.
constexpr KvRange visible(const Mask& mask, std::int64_t position, std::int64_t kv_len) {
  KvRange range{0, kv_len};
  if (mask.causal) range.end = std::min(range.end, position + 1);
  if (mask.window > 0) {
    range.begin = std::max(range.begin, position - mask.window + 1);
    if (!mask.causal) range.end = std::min(range.end, position + mask.window);
  }
  range.end = std::max(range.end, range.begin);
  return range;
}

/// All that the tokens [first, last] of a request see together: the bounds grow with the position.
constexpr KvRange visible_to_any(const Mask& mask, std::int64_t first, std::int64_t last,
                                 std::int64_t kv_len) {
  const std::int64_t begin = std::min(visible(mask, first, kv_len).begin, kv_len);
  return {begin, std::max(begin, visible(mask, last, kv_len).end)};
}

}  // namespace hpcattn::plan
