// SPDX-License-Identifier: Apache-2.0
#include "src/ops/store_checks.h"

#include <string>

#include "src/common/check.h"
#include "src/cpu/store.h"
#include "src/ops/check_tensor.h"
#include "src/ops/support.h"

namespace hpcattn::ops {
namespace {

void check_one_cache(std::string_view op, std::string_view arg, const Tensor& cache,
                     const Tensor& k) {
  check_shape(op, arg, cache, {kAnySize, kAnySize, k.size(1), k.size(2)});
  check_device(op, arg, cache, k.device());
  if (!store_dtypes_supported(k.dtype(), cache.dtype())) {
    throw InvalidArgument(message(op, ": ", arg, " has dtype ", name(cache.dtype()), ", expected ",
                                  store_dtypes_text(k.dtype()), "."));
  }
  check_last_contiguous(op, arg, cache);
  check_no_overlap(op, arg, cache);
}

std::string slot_range(const Tensor& k_cache) {
  const std::int64_t num_slots = k_cache.size(0) * k_cache.size(1);
  const std::string pool =
      message(" (k_cache has ", k_cache.size(0), " pages of ", k_cache.size(1), ").");
  return num_slots == 0 ? "-1" + pool : message("-1 or 0 to ", num_slots - 1, pool);
}

}  // namespace

void check_cache(std::string_view op, const Tensor& k, const Tensor& k_cache,
                 const Tensor& v_cache) {
  check_one_cache(op, "k_cache", k_cache, k);
  check_one_cache(op, "v_cache", v_cache, k);
  if (v_cache.size(0) != k_cache.size(0) || v_cache.size(1) != k_cache.size(1)) {
    throw InvalidArgument(message(op, ": v_cache is ", to_string(v_cache),
                                  ", expected k_cache's shape, ", to_string(k_cache), "."));
  }
  check(v_cache.dtype() == k_cache.dtype(), op, ": v_cache has dtype ", name(v_cache.dtype()),
        ", expected ", name(k_cache.dtype()), " (as k_cache has).");
  check_head_dim(op, k.size(2));
  if (!page_size_supported(k_cache.size(1))) {
    throw Unsupported(message(op, ": k_cache has page size ", k_cache.size(1), ", supported is ",
                              supported_page_sizes_text(), "."));
  }
}

void check_head_dim(std::string_view op, std::int64_t head_dim) {
  if (head_dim_supported(head_dim)) return;
  throw Unsupported(
      message(op, ": head_dim is ", head_dim, ", supported are ", supported_head_dims_text(), "."));
}

void check_store_scale(std::string_view op, std::string_view arg, const Tensor& scale, bool needed,
                       std::string_view target, Device device, std::int64_t num_heads) {
  check(needed || !scale.defined(), op, ": ", arg, " is given and nothing of ", target,
        " is float8, so it would not be used. Leave it out.");
  if (!needed) return;
  check(scale.defined(), op, ": ", arg, " is not given, needed for float8 ", target,
        ": what is stored is the value / ", arg, ". Pass [1.0] to store values as they are.");
  check_scale(op, arg, scale, device, num_heads);
}

std::vector<std::int64_t> slots_of_mapping(std::string_view op, const Tensor& slot_mapping,
                                           std::int64_t count, const Tensor& k_cache) {
  const std::int64_t num_slots = k_cache.size(0) * k_cache.size(1);
  std::vector<std::int64_t> slots(static_cast<std::size_t>(count));
  for (std::int64_t token = 0; token < count; ++token) {
    const std::int64_t slot = index_at(slot_mapping, token);
    if (slot < -1 || slot >= num_slots) {
      throw InvalidArgument(
          message(op, ": slot_mapping[", token, "] is ", slot, ", expected ", slot_range(k_cache)));
    }
    slots[static_cast<std::size_t>(token)] = slot;
  }
  return slots;
}

std::vector<std::int64_t> slots_of_pages(std::string_view op, const Tensor& page_table,
                                         const Tensor& cu_seqlens_q, const Tensor& kv_lens,
                                         std::int64_t count, const Tensor& k_cache) {
  const std::int64_t num_pages = k_cache.size(0);
  const std::int64_t page_size = k_cache.size(1);
  std::vector<std::int64_t> slots(static_cast<std::size_t>(count), cpu::kNoSlot);
  for (std::int64_t request = 0; request < kv_lens.size(0); ++request) {
    const std::int64_t begin = index_at(cu_seqlens_q, request);
    const std::int64_t end = index_at(cu_seqlens_q, request + 1);
    const std::int64_t past = index_at(kv_lens, request) - (end - begin);
    for (std::int64_t token = begin; token < end; ++token) {
      const std::int64_t place = past + token - begin;
      const std::int64_t page = index_at(page_table, request, place / page_size);
      if (page < -1 || page >= num_pages) {
        throw InvalidArgument(message(op, ": page_table[", request, ", ", place / page_size,
                                      "] is ", page, ", expected -1 or a page of k_cache's ",
                                      num_pages, "."));
      }
      if (page != -1) slots[static_cast<std::size_t>(token)] = page * page_size + place % page_size;
    }
  }
  return slots;
}

}  // namespace hpcattn::ops
