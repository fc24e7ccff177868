// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/store.h"

#include <algorithm>
#include <cstring>

#include "src/common/thread_pool.h"
#include "src/cpu/row_ops.h"

namespace hpcattn::cpu {
namespace {

/// K or V of a call.
struct Side {
  const Tensor& input;
  const Tensor& cache;
  std::vector<double> scales;
  bool same_bits;      // nothing but bytes to move
  bool heads_in_line;  // and all heads of a token in one piece

  Side(const Tensor& rows, const Tensor& pages, const Tensor& scale)
      : input(rows), cache(pages), scales(scales_of_heads(scale, rows.size(1))) {
    same_bits = input.dtype() == cache.dtype();
    heads_in_line = input.stride(1) == input.size(2) && cache.stride(2) == cache.size(3);
  }

  void store(std::int64_t token, std::int64_t slot, double* row) const {
    const RowOps& ops = row_ops();
    const std::int64_t num_heads = input.size(1);
    const std::int64_t head_dim = input.size(2);
    const CachePlace place(cache, slot);
    const std::int64_t row_bytes = head_dim * size_bytes(input.dtype());
    if (same_bits && heads_in_line) {
      std::memcpy(place.first_head, row_address(input, token, 0),
                  static_cast<std::size_t>(num_heads * row_bytes));
      return;
    }
    for (std::int64_t head = 0; head < num_heads; ++head) {
      if (same_bits) {
        std::memcpy(place.head(head), row_address(input, token, head),
                    static_cast<std::size_t>(row_bytes));
        continue;
      }
      ops.load(row_address(input, token, head), input.dtype(), head_dim, row);
      ops.store(row, scales[static_cast<std::size_t>(head)], head_dim, place.head(head),
                cache.dtype());
    }
  }
};

}  // namespace

std::vector<double> scales_of_heads(const Tensor& scale, std::int64_t num_heads) {
  std::vector<double> scales(static_cast<std::size_t>(num_heads), 1.0);
  if (!scale.defined()) return scales;
  for (std::size_t head = 0; head < scales.size(); ++head) {
    const std::int64_t at = scale.size(0) == 1 ? 0 : static_cast<std::int64_t>(head);
    scales[head] = static_cast<double>(scale.data_as<const float>()[at * scale.stride(0)]);
  }
  return scales;
}

char* row_address(const Tensor& tensor, std::int64_t i, std::int64_t j) {
  return tensor.data_as<char>() +
         (i * tensor.stride(0) + j * tensor.stride(1)) * size_bytes(tensor.dtype());
}

CachePlace::CachePlace(const Tensor& cache, std::int64_t slot)
    : first_head(row_address(cache, slot / cache.size(1), slot % cache.size(1))),
      head_bytes(cache.stride(2) * size_bytes(cache.dtype())) {}

std::int64_t tokens_per_task(std::int64_t elements_per_token) {
  // Some ten microseconds of work: long beside taking a task, short enough to share out a decode
  // step.
  constexpr std::int64_t kElements = 32768;
  return std::max<std::int64_t>(1, kElements / std::max<std::int64_t>(1, elements_per_token));
}

void store_kv(const StoreKvArgs& args, std::span<const std::int64_t> slots,
              const Execution& execution) {
  const Side k(args.k, args.k_cache, args.k_scale);
  const Side v(args.v, args.v_cache, args.v_scale);
  const auto num_tokens = static_cast<std::int64_t>(slots.size());
  const std::int64_t step = tokens_per_task(2 * args.k.size(1) * args.k.size(2));
  const auto num_tasks = static_cast<int>((num_tokens + step - 1) / step);
  run_parallel(execution, num_tasks, [&](int task) {
    RowBuffer row(args.k.size(2));
    const std::int64_t end = std::min(num_tokens, (task + 1) * step);
    for (std::int64_t token = task * step; token < end; ++token) {
      const std::int64_t slot = slots[static_cast<std::size_t>(token)];
      if (slot == kNoSlot) continue;
      k.store(token, slot, row.data());
      v.store(token, slot, row.data());
    }
  });
}

}  // namespace hpcattn::cpu
