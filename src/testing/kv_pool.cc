// SPDX-License-Identifier: Apache-2.0
#include "src/testing/kv_pool.h"

#include <algorithm>
#include <array>

namespace hpcattn::testkit {

KvPool::KvPool(const KvPoolShape& shape) {
  const std::int64_t row = shape.num_kv_heads * shape.head_dim;
  const std::int64_t page = shape.page_size * row;
  const std::int64_t width = size_bytes(shape.dtype);
  const bool one_tensor =
      shape.layout == KvLayout::kHalves || shape.layout == KvLayout::kInterleaved;
  const auto bytes = static_cast<std::size_t>(shape.num_pages * page * width);
  first_ = GuardedBuffer(one_tensor ? 2 * bytes : bytes, shape.side);
  if (!one_tensor) second_ = GuardedBuffer(bytes, shape.side);

  const std::array<std::int64_t, 4> sizes = {shape.num_pages, shape.page_size, shape.num_kv_heads,
                                             shape.head_dim};
  const std::array<std::int64_t, 4> nhd = {page, row, shape.head_dim, 1};
  const std::array<std::int64_t, 4> hnd = {page, shape.head_dim, shape.page_size * shape.head_dim,
                                           1};
  const std::array<std::int64_t, 4> halves = {2 * page, row, shape.head_dim, 1};
  // As vLLM has it: [page, head, place, 2 * dim].
  const std::array<std::int64_t, 4> interleaved = {2 * page, 2 * shape.head_dim,
                                                   2 * shape.page_size * shape.head_dim, 1};
  auto* base = static_cast<std::uint8_t*>(first_.data());
  switch (shape.layout) {
    case KvLayout::kNhd:
    case KvLayout::kHnd:
    case KvLayout::kMixed:
      k_ = Tensor(base, shape.dtype, sizes, shape.layout == KvLayout::kHnd ? hnd : nhd);
      v_ = Tensor(second_.data(), shape.dtype, sizes, shape.layout == KvLayout::kNhd ? nhd : hnd);
      break;
    case KvLayout::kHalves:
      k_ = Tensor(base, shape.dtype, sizes, halves);
      v_ = Tensor(base + page * width, shape.dtype, sizes, halves);
      break;
    case KvLayout::kInterleaved:
      k_ = Tensor(base, shape.dtype, sizes, interleaved);
      v_ = Tensor(base + shape.head_dim * width, shape.dtype, sizes, interleaved);
      break;
  }
}

std::string KvPool::check(std::span<const reference::Place> places,
                          const std::vector<double>& want_k, const std::vector<double>& want_v,
                          Nearness nearness) const {
  return check_side(k_, "k_cache", places, want_k, nearness) +
         check_side(v_, "v_cache", places, want_v, nearness) + check_rest(places);
}

std::string KvPool::check_side(const Tensor& cache, const std::string& label,
                               std::span<const reference::Place> places,
                               const std::vector<double>& want, Nearness nearness) const {
  RoundedCheck rounded(label, nearness);
  std::size_t at = 0;
  for (const reference::Place& place : places) {
    for (std::int64_t head = 0; head < cache.size(2); ++head) {
      const double largest = largest_of(want, at, cache.size(3));
      for (std::int64_t d = 0; d < cache.size(3); ++d, ++at) {
        if (place.page < 0) continue;
        rounded.add(cache, {place.page, place.offset, head, d}, want[at], largest);
      }
    }
  }
  return rounded.failure();
}

std::string KvPool::check_rest(std::span<const reference::Place> places) const {
  std::vector<bool> first_live(first_.size());
  std::vector<bool> second_live(second_.size());
  const auto mark = [&](const Tensor& cache, const GuardedBuffer& buffer, std::vector<bool>& live) {
    const std::int64_t width = size_bytes(cache.dtype());
    const std::int64_t base = cache.data_as<char>() - static_cast<char*>(buffer.data());
    for (const reference::Place& place : places) {
      for (std::int64_t head = 0; place.page >= 0 && head < cache.size(2); ++head) {
        const std::int64_t offset =
            place.page * cache.stride(0) + place.offset * cache.stride(1) + head * cache.stride(2);
        std::fill_n(live.begin() + base + offset * width, cache.size(3) * width, true);
      }
    }
  };
  mark(k_, first_, first_live);
  mark(v_, second_.size() > 0 ? second_ : first_, second_.size() > 0 ? second_live : first_live);

  const auto count_written = [](const GuardedBuffer& buffer, const std::vector<bool>& live) {
    const auto* bytes = static_cast<const std::uint8_t*>(buffer.data());
    std::int64_t written = 0;
    for (std::size_t i = 0; i < buffer.size(); ++i) {
      written += !live[i] && bytes[i] != GuardedBuffer::kUnwritten ? 1 : 0;
    }
    return written;
  };
  const std::int64_t written =
      count_written(first_, first_live) + count_written(second_, second_live);
  if (written > 0)
    return std::to_string(written) + " bytes of the pool were written that no token has\n";
  const bool intact = first_.slack_intact() && (second_.size() == 0 || second_.slack_intact());
  return intact ? "" : "memory beside the pool was written\n";
}

bool KvPool::untouched() const { return check_rest({}).empty(); }

std::vector<std::uint8_t> KvPool::bytes() const {
  std::vector<std::uint8_t> all = first_.bytes();
  const std::vector<std::uint8_t> more = second_.bytes();
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace hpcattn::testkit
