// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "fuzz/calls.h"
#include "hpcattn/merge.h"
#include "hpcattn/rope.h"
#include "hpcattn/store.h"

namespace hpcattn::fuzz {
namespace {

constexpr DType kF32 = DType::kFloat32;
constexpr DType kF16 = DType::kFloat16;
constexpr DType kBF16 = DType::kBFloat16;
constexpr DType kE4M3 = DType::kFloat8E4M3;
constexpr DType kE5M2 = DType::kFloat8E5M2;

/// A slot for each of so many tokens, all unlike, and some -1.
std::vector<std::int64_t> make_slots(Bytes& bytes, std::int64_t count, std::int64_t num_slots) {
  std::vector<std::int64_t> slots;
  for (std::int64_t t = 0; t < count; ++t) {
    slots.push_back(t < num_slots && !bytes.chance(16) ? num_slots - 1 - t : -1);
  }
  return slots;
}

std::int64_t make_head_dim(Bytes& bytes) {
  const auto right = bytes.pick<std::int64_t>({64, 64, 80, 128});
  return bytes.chance(4) ? bytes.pick<std::int64_t>({0, 1, 2, 63, 72}) : right;
}

}  // namespace

void call_merge_partials(Workbench& bench) {
  Bytes& bytes = bench.bytes();
  MergeArgs args;
  const std::vector<std::int64_t> sizes = {bytes.integer(0, 4), bytes.integer(0, 3),
                                           bytes.integer(0, 70)};
  const DType dtype = bytes.pick({kF32, kF16, kBF16});
  const std::int64_t count = bytes.integer(0, 4);
  for (std::int64_t s = 0; s < count; ++s) {
    args.partials.push_back(bench.floats(dtype, sizes));
    if (!bytes.chance(2)) args.lses.push_back(bench.floats(kF32, {sizes[0], sizes[1]}));
  }
  args.out = bench.output(bytes.pick({dtype, kF32}), sizes);
  if (bytes.chance(128)) args.lse = bench.output(kF32, {sizes[0], sizes[1]});
  if (count > 0 && bytes.chance(32)) args.out = args.partials.back();
  if (!args.lses.empty() && bytes.chance(32)) args.lse = args.lses.front();
  const Execution execution = make_execution(bytes);
  bench.begin_call();
  merge_partials(args, execution);
}

void call_store_kv(Workbench& bench) {
  Bytes& bytes = bench.bytes();
  const std::int64_t tokens = bytes.integer(0, 12);
  const std::int64_t heads = bytes.integer(1, 3);
  const std::int64_t head_dim = make_head_dim(bytes);
  const auto page_size = bytes.pick<std::int64_t>({8, 16, 24});
  const std::int64_t pages = bytes.integer(0, 3);
  StoreKvArgs args;
  const DType dtype = bytes.pick({kF32, kF16, kBF16});
  const DType cache = bytes.pick({dtype, kE4M3, kE5M2});
  args.k = bench.floats(dtype, {tokens, heads, head_dim});
  args.v = bench.floats(dtype, {tokens, heads, head_dim});
  args.k_cache = bench.output(cache, {pages, page_size, heads, head_dim});
  args.v_cache = bench.output(cache, {pages, page_size, heads, head_dim});
  const std::int64_t mapped = std::max<std::int64_t>(0, tokens - bytes.integer(0, 2));
  args.slot_mapping = bench.integers(make_slots(bytes, mapped, pages * page_size), {mapped},
                                     bytes.pick({DType::kInt32, DType::kInt64}));
  if (is_fp8(cache) != bytes.chance(4)) {
    args.k_scale = bench.scales({bytes.pick<std::int64_t>({1, heads})});
    args.v_scale = bench.scales({bytes.pick<std::int64_t>({1, heads})});
  }
  const Execution execution = make_execution(bytes);
  bench.begin_call();
  store_kv(args, execution);
}

void call_rope_norm_store_kv(Workbench& bench) {
  Bytes& bytes = bench.bytes();
  const Batch batch = make_batch(bytes);
  const Pages pages = make_pages(bytes, batch);
  const std::int64_t tokens = batch.num_tokens;
  const std::int64_t kv_heads = bytes.integer(1, 2);
  const std::int64_t q_heads = kv_heads * bytes.integer(1, 3);
  const std::int64_t head_dim = make_head_dim(bytes);
  const DType dtype = bytes.pick({kF32, kF16, kBF16});
  RopeNormStoreKvArgs args;
  args.q = bench.floats(dtype, {tokens, q_heads, head_dim});
  args.k = bench.floats(dtype, {tokens, kv_heads, head_dim});
  args.v = bench.floats(dtype, {tokens, kv_heads, head_dim});
  const std::int64_t rotary_dim = bytes.chance(32) ? bytes.integer(0, 130) : head_dim;
  const std::int64_t max_position = bytes.chance(4) ? bytes.integer(0, 30) : 80;
  args.cos_sin = bench.floats(bytes.pick({kF32, kF16, kBF16}), {max_position, rotary_dim});
  args.style = bytes.pick({RopeStyle::kNeox, RopeStyle::kInterleaved});
  if (bytes.chance(2)) args.style = static_cast<RopeStyle>(7);

  const DType index_dtype = bytes.pick({DType::kInt32, DType::kInt64});
  std::vector<std::int64_t> positions;
  const bool mrope = bytes.chance(32);
  for (std::int64_t t = 0; t < (mrope ? 3 : 1) * tokens; ++t) positions.push_back(t % 70);
  const bool with_positions = mrope || bytes.chance(96);
  if (with_positions) {
    args.positions = mrope ? bench.integers(positions, {3, tokens}, index_dtype)
                           : bench.integers(positions, {tokens}, index_dtype);
  }
  if (mrope) {
    args.mrope_section = {rotary_dim / 2 - 2, 1, 1};
    if (bytes.chance(16)) args.mrope_section[0] = bytes.pick<std::int64_t>({-1, 0, 1, 1 << 30});
  }
  const bool with_slots = bytes.chance(96);
  if (!(with_positions && with_slots) || bytes.chance(64)) {
    args.cu_seqlens_q = bench.integers(batch.ends_q, {batch.num_requests + 1});
    args.kv_lens = bench.integers(batch.kv_lens, {batch.num_requests});
  }
  const bool with_cache = !bytes.chance(48);
  const DType cache = bytes.pick({dtype, kE4M3, kE5M2});
  if (with_cache) {
    const std::vector<std::int64_t> pool = {pages.num_pages, pages.page_size, kv_heads, head_dim};
    args.k_cache = bench.output(cache, pool);
    args.v_cache = bench.output(cache, pool);
  }
  if (with_slots) {
    args.slot_mapping = bench.integers(make_slots(bytes, tokens, pages.num_pages * pages.page_size),
                                       {tokens}, index_dtype);
  } else if (with_cache || bytes.chance(64)) {
    args.page_table = bench.integers(pages.table, {batch.num_requests, pages.max_pages});
  }
  bool scales = with_cache && is_fp8(cache);
  if (bytes.chance(48)) {
    const DType out = bytes.pick({dtype, cache});
    args.out_k = bench.output(out, {tokens, kv_heads, head_dim});
    args.out_v = bench.output(out, {tokens, kv_heads, head_dim});
    scales = scales || is_fp8(out);
  }
  if (scales != bytes.chance(4)) {
    args.k_scale = bench.scales({bytes.pick<std::int64_t>({1, kv_heads})});
    args.v_scale = bench.scales({bytes.pick<std::int64_t>({1, kv_heads})});
  }
  const DType q_out = bytes.pick({dtype, kE4M3});
  args.out_q = bench.output(q_out, {tokens, q_heads, head_dim});
  if (q_out == dtype && bytes.chance(32)) args.out_q = args.q;
  if (is_fp8(q_out) != bytes.chance(4)) {
    if (bytes.chance(128)) {
      args.q_scale = bench.scales({1});
    } else {
      args.out_q_scale = bench.output(kF32, {tokens, q_heads});
    }
  }
  if (bytes.chance(4)) {
    args.upper_max =
        bytes.pick({0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), 1e300, 240.0});
  }
  args.norm_policy =
      bytes.pick({QkNormPolicy::kNone, QkNormPolicy::kRopeThenNorm, QkNormPolicy::kNormThenRope});
  if (bytes.chance(2)) args.norm_policy = static_cast<QkNormPolicy>(9);
  args.norm_scope = bytes.pick({NormScope::kHead, NormScope::kToken});
  if ((args.norm_policy != QkNormPolicy::kNone) != bytes.chance(4)) {
    const bool per_token = args.norm_scope == NormScope::kToken;
    const DType weight = bytes.pick({kF32, kF16, kBF16});
    args.q_norm_weight = bench.floats(weight, {per_token ? q_heads * head_dim : head_dim});
    args.k_norm_weight = bench.floats(weight, {per_token ? kv_heads * head_dim : head_dim});
    args.norm_eps =
        bytes.chance(4) ? bytes.pick({-1.0, std::numeric_limits<double>::quiet_NaN(), 0.0}) : 1e-6;
  }
  const Execution execution = make_execution(bytes);
  bench.begin_call();
  rope_norm_store_kv(args, execution);
}

}  // namespace hpcattn::fuzz
