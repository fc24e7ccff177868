// SPDX-License-Identifier: Apache-2.0
#include "src/testing/store_case.h"

#include <numeric>

#include "src/cpu/reference/store.h"
#include "src/testing/random.h"

namespace hpcattn::testkit {

std::string to_string(const StoreCase& c) {
  std::string text(name(c.dtype));
  text += " to " + std::string(name(c.cache_dtype)) + " " + name(c.layout) + " " +
          std::string(name(c.index_dtype)) + ", tokens " + std::to_string(c.num_tokens) +
          ", heads " + std::to_string(c.num_kv_heads) + ", dim " + std::to_string(c.head_dim) +
          ", page " + std::to_string(c.page_size) + (c.packed ? ", packed" : "");
  return text;
}

StoreBatch::StoreBatch(const StoreCase& c, std::uint64_t seed) {
  Rng rng(seed);
  const std::vector<std::int64_t> sizes = {c.num_tokens, c.num_kv_heads, c.head_dim};
  if (c.packed) {
    k = GuardedTensor(c.dtype, {c.num_tokens, 2 * c.num_kv_heads + 1, c.head_dim});
    k.fill_normal(rng);
    args.k = k.tensor().slice(1, 0, c.num_kv_heads);
    args.v = k.tensor().slice(1, c.num_kv_heads, c.num_kv_heads);
  } else {
    k = GuardedTensor(c.dtype, sizes);
    v = GuardedTensor(c.dtype, sizes, GuardSide::kBefore, 5);
    k.fill_normal(rng);
    v.fill_normal(rng);
    args.k = k;
    args.v = v;
  }
  const std::int64_t num_mapped = c.num_tokens - c.padding_tokens;
  const std::int64_t num_pages = c.num_tokens / c.page_size + 2;
  pool = KvPool({.layout = c.layout,
                 .dtype = c.cache_dtype,
                 .num_pages = num_pages,
                 .page_size = c.page_size,
                 .num_kv_heads = c.num_kv_heads,
                 .head_dim = c.head_dim});
  args.k_cache = pool.k();
  args.v_cache = pool.v();

  std::vector<std::int64_t> free_slots(static_cast<std::size_t>(num_pages * c.page_size));
  std::iota(free_slots.begin(), free_slots.end(), 0);
  rng.shuffle(free_slots);
  free_slots.resize(static_cast<std::size_t>(num_mapped));
  for (std::int64_t& slot : free_slots) slot = rng.chance(c.hole_share) ? -1 : slot;
  slots =
      c.index_dtype == DType::kInt64
          ? GuardedTensor::of_ints(free_slots)
          : GuardedTensor::of_ints(std::vector<std::int32_t>(free_slots.begin(), free_slots.end()));
  args.slot_mapping = slots;
  if (!is_fp8(c.cache_dtype)) return;
  std::vector<double> values(static_cast<std::size_t>(c.scale_per_head ? c.num_kv_heads : 1));
  for (double& value : values) value = rng.real(0.05, 0.2);
  k_scale = GuardedTensor::of_floats(values);
  for (double& value : values) value = rng.real(0.001, 0.01);  // saturates some
  v_scale = GuardedTensor::of_floats(values);
  args.k_scale = k_scale;
  args.v_scale = v_scale;
}

std::string StoreBatch::run_and_check(const Execution& execution) {
  return run_and_check_by([&](const StoreKvArgs& call) {
    store_kv(call, execution);
    return std::string();
  });
}

std::string StoreBatch::run_and_check_by(
    const std::function<std::string(const StoreKvArgs&)>& call) {
  const reference::StoreResult want = reference::store_kv(args);
  const auto k_before = k.bytes();
  const auto v_before = v.bytes();
  std::string failure = call(args);
  failure += pool.check(want.places, want.k, want.v);
  if (k.bytes() != k_before || v.bytes() != v_before) failure += "k or v was written\n";
  return failure;
}

}  // namespace hpcattn::testkit
