// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <type_traits>

#include "fuzz/calls.h"
#include "hpcattn/plan.h"

namespace hpcattn::fuzz {
namespace {

constexpr DType kF32 = DType::kFloat32;
constexpr DType kF16 = DType::kFloat16;
constexpr DType kBF16 = DType::kBFloat16;
constexpr DType kE4M3 = DType::kFloat8E4M3;
constexpr DType kE5M2 = DType::kFloat8E5M2;

/// Sizes and dtypes that both attention operators have.
struct Shape {
  explicit Shape(Bytes& bytes) {
    num_kv_heads = bytes.integer(1, 2);
    num_q_heads = num_kv_heads * bytes.pick<std::int64_t>({1, 2, 3, 5});
    head_dim = bytes.pick<std::int64_t>({64, 64, 64, 80, 96, 128});
    if (bytes.chance(4)) head_dim = bytes.pick<std::int64_t>({0, 1, 63, 65, 72, 48});
    if (bytes.chance(3)) ++num_q_heads;
    q = bytes.pick({kF32, kF16, kBF16, kE4M3});
    kv = q == kE4M3 ? bytes.pick({kE4M3, kE5M2}) : bytes.pick({q, q, kE4M3, kE5M2});
    out = q == kE4M3 ? bytes.pick({kF32, kF16, kBF16, kE4M3}) : bytes.pick({q, q, kE4M3});
    if (bytes.chance(4)) out = bytes.pick({kF32, kF16, kBF16, kE4M3, kE5M2, DType::kInt32});
  }
  std::int64_t num_kv_heads, num_q_heads, head_dim;
  DType q, kv, out;
};

double scalar(Bytes& bytes, double right) {
  if (!bytes.chance(6)) return right;
  return bytes.pick({0.0, -right, 1e-300, 1e300, std::numeric_limits<double>::infinity(),
                     std::numeric_limits<double>::quiet_NaN()});
}

AttentionOptions make_options(Workbench& bench, const Shape& shape, std::int64_t num_tokens) {
  Bytes& bytes = bench.bytes();
  AttentionOptions options;
  options.scale = scalar(bytes, 0.125);
  options.causal = !bytes.chance(64);
  if (bytes.chance(96)) {
    options.window =
        bytes.pick<std::int64_t>({1, 2, 7, 64, 1000, std::numeric_limits<std::int32_t>::max(),
                                  std::numeric_limits<std::int64_t>::max()});
  }
  if (bytes.chance(4)) {
    options.window = bytes.pick<std::int64_t>({0, -1, std::numeric_limits<std::int64_t>::min()});
  }
  if (bytes.chance(64)) options.softcap = scalar(bytes, 30.0);
  if (bytes.chance(64)) options.alibi_slopes = bench.floats(kF32, {shape.num_q_heads});
  if (bytes.chance(64)) {
    options.sinks = bench.scales({shape.num_q_heads});
  } else if (bytes.chance(16)) {
    options.sinks = bench.floats(bytes.pick({kF16, kBF16, kE4M3}), {shape.num_q_heads});
  }
  const bool forget = bytes.chance(4);  // the scales, or give them where none belong
  const auto head_scale = [&] {
    return bench.scales({bytes.pick<std::int64_t>({1, shape.num_kv_heads})});
  };
  if (is_fp8(shape.q) != forget) {
    options.q_scale =
        bytes.chance(128) ? bench.scales({num_tokens, shape.num_q_heads}) : bench.scales({1});
  }
  if (is_fp8(shape.kv) != forget) {
    options.k_scale = head_scale();
    options.v_scale = head_scale();
  }
  if (is_fp8(shape.out) != forget) options.out_scale = bench.scales({1});
  return options;
}

/// A plan for this call, for another one, changed afterwards, or no plan at all.
template <typename Args>
Tensor make_some_plan(Workbench& bench, const Args& args, const Tensor& kv_lens) {
  Bytes& bytes = bench.bytes();
  // Groups and lengths are read from tensors: only right ones can be asked for a plan.
  const Tensor& k = [&]() -> const Tensor& {
    if constexpr (std::is_same_v<Args, PagedAttentionArgs>) {
      return args.k_cache;
    } else {
      return args.k;
    }
  }();
  const int kv_rank = std::is_same_v<Args, PagedAttentionArgs> ? 4 : 3;
  if (args.q.rank() != 3 || k.rank() != kv_rank) return bench.words(bytes.integer(0, 200));
  AttentionGroup group = group_of(args);
  if (bytes.chance(16)) group.num_q_heads += group.num_kv_heads;
  if (bytes.chance(16)) group.causal = !group.causal;
  if (bytes.chance(16)) group.window = 3;
  const Tensor plan = bench.words(bytes.chance(8) ? bytes.integer(0, 60) : 4000);
  PlanArgs plan_args;
  plan_args.group = group;
  plan_args.cu_seqlens_q = args.cu_seqlens_q;
  plan_args.kv_lens = kv_lens;
  plan_args.fixed_split = bytes.pick<std::int64_t>({0, 64, 128});
  plan_args.plan = plan;
  make_plan(plan_args, make_execution(bytes));
  if (bytes.chance(32)) {
    const std::int64_t at = bytes.byte() % plan.size(0);
    plan.data_as<std::uint32_t>()[at] ^= 1U << bytes.integer(0, 31);
  }
  return plan;
}

}  // namespace

void call_paged_attention(Workbench& bench) {
  Bytes& bytes = bench.bytes();
  const Batch batch = make_batch(bytes);
  const Shape shape(bytes);
  const Pages pages = make_pages(bytes, batch);
  PagedAttentionArgs args;
  args.q = bench.floats(shape.q, {batch.num_tokens, shape.num_q_heads, shape.head_dim});
  const std::vector<std::int64_t> pool = {pages.num_pages, pages.page_size, shape.num_kv_heads,
                                          shape.head_dim};
  args.k_cache = bench.floats(shape.kv, pool);
  args.v_cache = bench.floats(shape.kv, pool);
  args.page_table = bench.integers(pages.table, {batch.num_requests, pages.max_pages});
  args.cu_seqlens_q = bench.integers(batch.ends_q, {batch.num_requests + 1});
  args.kv_lens = bench.integers(batch.kv_lens, {batch.num_requests});
  args.options = make_options(bench, shape, batch.num_tokens);
  if (bytes.chance(64)) args.plan = make_some_plan(bench, args, args.kv_lens);
  args.out = bench.output(shape.out, {batch.num_tokens, shape.num_q_heads, shape.head_dim});
  if (bytes.chance(128)) args.lse = bench.output(kF32, {batch.num_tokens, shape.num_q_heads});
  const Execution execution = make_execution(bytes);
  bench.begin_call();
  paged_attention(args, execution);
}

void call_packed_attention(Workbench& bench) {
  Bytes& bytes = bench.bytes();
  const Batch batch = make_batch(bytes);
  const Shape shape(bytes);
  PackedAttentionArgs args;
  args.q = bench.floats(shape.q, {batch.num_tokens, shape.num_q_heads, shape.head_dim});
  const std::vector<std::int64_t> sizes = {batch.ends_k.back() + bytes.integer(0, 1),
                                           shape.num_kv_heads, shape.head_dim};
  args.k = bench.floats(shape.kv, sizes);
  args.v = bench.floats(shape.kv, sizes);
  args.cu_seqlens_q = bench.integers(batch.ends_q, {batch.num_requests + 1});
  args.cu_seqlens_k = bench.integers(batch.ends_k, {batch.num_requests + 1});
  args.options = make_options(bench, shape, batch.num_tokens);
  if (bytes.chance(64)) {
    args.plan = make_some_plan(bench, args, bench.integers(batch.kv_lens, {batch.num_requests}));
  }
  args.out = bench.output(shape.out, {batch.num_tokens, shape.num_q_heads, shape.head_dim});
  if (bytes.chance(128)) args.lse = bench.output(kF32, {batch.num_tokens, shape.num_q_heads});
  const Execution execution = make_execution(bytes);
  bench.begin_call();
  packed_attention(args, execution);
}

void call_make_plan(Workbench& bench) {
  Bytes& bytes = bench.bytes();
  const Batch batch = make_batch(bytes);
  PlanArgs args;
  AttentionGroup& group = args.group;
  group.num_kv_heads = static_cast<int>(bytes.integer(1, 3));
  group.num_q_heads = group.num_kv_heads * static_cast<int>(bytes.integer(1, 5));
  group.head_dim = 64;
  group.page_size = static_cast<int>(bytes.pick<std::int64_t>({0, 8, 16}));
  group.causal = !bytes.chance(64);
  if (bytes.chance(96)) group.window = bytes.pick<std::int64_t>({1, 7, 64, 1000, 2147483647});
  if (bytes.chance(8)) {
    int* const fields[] = {&group.num_kv_heads, &group.num_q_heads, &group.head_dim,
                           &group.page_size};
    *fields[bytes.integer(0, 3)] =
        bytes.pick({0, -1, 7, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()});
  }
  if (bytes.chance(4)) group.window = bytes.pick<std::int64_t>({0, -1, std::int64_t{1} << 40});
  args.cu_seqlens_q = bench.integers(batch.ends_q, {batch.num_requests + 1});
  args.kv_lens = bench.integers(batch.kv_lens, {batch.num_requests});
  args.fixed_split = bytes.pick<std::int64_t>({0, 0, 64, 128, 1024});
  if (bytes.chance(8)) {
    args.fixed_split =
        bytes.pick<std::int64_t>({-64, 1, 63, std::numeric_limits<std::int64_t>::max(),
                                  std::numeric_limits<std::int64_t>::min()});
  }
  PlanCapacity capacity;
  capacity.max_requests = batch.num_requests;
  capacity.max_tokens = batch.num_tokens;
  capacity.max_kv_len = 100;
  capacity.fixed_split = args.fixed_split;
  capacity.num_workers = 4;
  if (bytes.chance(4)) {
    std::int64_t* const fields[] = {&capacity.max_requests, &capacity.max_tokens,
                                    &capacity.max_kv_len};
    *fields[bytes.integer(0, 2)] = bytes.pick<std::int64_t>(
        {-1, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int64_t>::max(),
         std::numeric_limits<std::int64_t>::min()});
  }
  const std::int64_t words = std::min<std::int64_t>(plan_words(group, capacity), 20'000);
  args.plan = bench.output(DType::kInt32, {bytes.chance(16) ? bytes.integer(0, 90) : words});
  const Execution execution = make_execution(bytes);
  bench.begin_call();
  make_plan(args, execution);
  summarize(args.plan);
}

}  // namespace hpcattn::fuzz
