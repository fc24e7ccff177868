// SPDX-License-Identifier: Apache-2.0
#include "src/testing/attention_case.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <sstream>
#include <string_view>

#include "src/cpu/reference/numbers.h"

namespace hpcattn::testkit {
namespace {

std::vector<std::int32_t> cumulative(const std::vector<std::int32_t>& lengths) {
  std::vector<std::int32_t> ends = {0};
  for (std::int32_t length : lengths) ends.push_back(ends.back() + length);
  return ends;
}

GuardedTensor random_scale(Rng& rng, Scales scales, std::vector<std::int64_t> sizes) {
  if (scales == Scales::kNone) return {};
  if (scales == Scales::kOne) sizes = {1};
  GuardedTensor result(DType::kFloat32, sizes, GuardSide::kAfter);
  for (std::int64_t i = 0; i < result.tensor().num_elements(); ++i) {
    result.tensor().data_as<float>()[i] = static_cast<float>(rng.real(0.4, 2.5));
  }
  return result;
}

void write_list(std::ostream& text, const char* label, const std::vector<std::int32_t>& values) {
  text << ' ' << label << '[';
  for (std::size_t i = 0; i < values.size(); ++i) text << (i > 0 ? "," : "") << values[i];
  text << ']';
}

}  // namespace

std::string name(KvLayout layout) {
  switch (layout) {
    case KvLayout::kNhd: return "nhd";
    case KvLayout::kHnd: return "hnd";
    case KvLayout::kHalves: return "halves";
    case KvLayout::kInterleaved: return "interleaved";
    case KvLayout::kMixed: return "mixed";
  }
  return "unknown";
}

std::string to_string(const AttentionCase& c) {
  std::ostringstream text;
  text << c.name << " (seed " << c.seed << ";";
  write_list(text, "q", c.q_lens);
  write_list(text, "kv", c.kv_lens);
  text << " heads " << c.num_q_heads << ':' << c.num_kv_heads << " dim " << c.head_dim << " page "
       << c.page_size << ' ' << name(c.layout) << " q " << name(c.q_dtype) << " kv "
       << name(c.kv_dtype) << " out " << name(c.out_dtype);
  if (c.scale != 0.0) text << " scale " << c.scale;
  text << (c.causal ? " causal" : " bidirectional");
  if (c.window) text << " window " << *c.window;
  if (c.softcap > 0.0) text << " softcap " << c.softcap;
  if (c.alibi) text << " alibi";
  if (c.sinks) text << " sinks " << name(*c.sinks);
  constexpr std::array kScaleNames = {"none", "one", "each", "by request"};
  text << " scales " << kScaleNames.at(std::size_t(c.q_scale)) << '/'
       << kScaleNames.at(std::size_t(c.k_scale)) << '/' << kScaleNames.at(std::size_t(c.v_scale));
  if (c.out_scale) text << " out_scale";
  if (c.hole_share > 0.0) text << " holes " << c.hole_share;
  if (c.row_gap > 0) text << " row_gap " << c.row_gap;
  text << ')';
  return text.str();
}

AttentionBatch::AttentionBatch(const AttentionCase& c) : case_(c) {
  Rng rng(c.seed);
  if (case_.scale == 0.0) case_.scale = 1.0 / std::sqrt(static_cast<double>(c.head_dim));
  fill_inputs(rng);
  make_options(rng);
  build_pool(rng);
}

void AttentionBatch::fill_inputs(Rng& rng) {
  const AttentionCase& c = case_;
  const GuardSide side = rng.chance(0.5) ? GuardSide::kAfter : GuardSide::kBefore;
  const std::vector<std::int32_t> cu_q = cumulative(c.q_lens);
  const std::vector<std::int32_t> cu_k = cumulative(c.kv_lens);
  num_tokens_ = cu_q.back() + c.padding_tokens;
  num_kv_tokens_ = cu_k.back();
  cu_seqlens_q_ = GuardedTensor::of_ints(cu_q, side);
  cu_seqlens_k_ = GuardedTensor::of_ints(cu_k, side);
  kv_lens_ = GuardedTensor::of_ints(c.kv_lens, side);

  const std::vector<std::int64_t> q_sizes = {num_tokens_, c.num_q_heads, c.head_dim};
  q_ = GuardedTensor(c.q_dtype, q_sizes, side, c.row_gap);
  q_.fill_normal(rng, c.deviation);
  // Rows of padding are not inputs: they stay NaN.
  for (std::int64_t token = cu_q.back(); token < num_tokens_; ++token) {
    for (std::int64_t head = 0; head < c.num_q_heads; ++head) {
      const Tensor row = q_.tensor().select(0, token).select(0, head);
      std::memset(row.data(), GuardedBuffer::kUnwritten,
                  static_cast<std::size_t>(c.head_dim * size_bytes(c.q_dtype)));
    }
  }
  k_ = GuardedTensor(c.kv_dtype, {num_kv_tokens_, c.num_kv_heads, c.head_dim}, side);
  v_ = GuardedTensor(c.kv_dtype, {num_kv_tokens_, c.num_kv_heads, c.head_dim}, side);
  k_.fill_normal(rng, c.deviation);
  v_.fill_normal(rng, c.deviation);
  out_ = GuardedTensor(c.out_dtype, q_sizes, side, c.row_gap);
  if (c.lse) lse_ = GuardedTensor(DType::kFloat32, {num_tokens_, c.num_q_heads}, side);
}

void AttentionBatch::make_options(Rng& rng) {
  const AttentionCase& c = case_;
  if (c.alibi) {
    alibi_ = GuardedTensor(DType::kFloat32, {c.num_q_heads});
    for (std::int64_t h = 0; h < c.num_q_heads; ++h) {
      alibi_.tensor().data_as<float>()[h] = static_cast<float>(std::exp2(-rng.real(0.5, 8.0)));
    }
  }
  if (c.sinks) {
    sinks_ = GuardedTensor(*c.sinks, {c.num_q_heads});
    sinks_.fill_normal(rng, 2.0);
  }
  if (c.q_scale == Scales::kByRequest) {
    const std::int32_t most = c.q_lens.empty() ? 0 : std::ranges::max(c.q_lens);
    const auto requests = static_cast<std::int64_t>(c.q_lens.size());
    q_scale_ = random_scale(rng, c.q_scale, {requests, c.num_q_heads, most + rng.integer(0, 3)});
    // What is no token's is not looked at.
    for (std::int64_t r = 0; r < requests; ++r) {
      for (std::int64_t head = 0; head < c.num_q_heads; ++head) {
        for (std::int64_t i = c.q_lens.at(std::size_t(r)); i < q_scale_.tensor().size(2); ++i) {
          reference::set_element(q_scale_, {r, head, i}, std::numeric_limits<double>::quiet_NaN());
        }
      }
    }
  } else {
    q_scale_ = random_scale(rng, c.q_scale, {num_tokens_, c.num_q_heads});
  }
  k_scale_ = random_scale(rng, c.k_scale, {c.num_kv_heads});
  v_scale_ = random_scale(rng, c.v_scale, {c.num_kv_heads});
  if (c.out_scale) out_scale_ = GuardedTensor::of_floats({rng.real(0.002, 0.02)});
}

void AttentionBatch::build_pool(Rng& rng) {
  const AttentionCase& c = case_;
  std::int64_t pages_in_use = 0;
  for (std::int32_t length : c.kv_lens) {
    const std::int64_t pages = (length + c.page_size - 1) / c.page_size;
    pages_in_use += pages;
    max_pages_ = std::max(max_pages_, pages);
  }
  max_pages_ += rng.integer(0, 3);
  const std::int64_t num_pages = pages_in_use + rng.integer(1, 4);
  const std::int64_t page_elements = c.page_size * c.num_kv_heads * c.head_dim;
  const bool one_tensor = c.layout == KvLayout::kHalves || c.layout == KvLayout::kInterleaved;
  const auto bytes = static_cast<std::size_t>(num_pages * page_elements * size_bytes(c.kv_dtype));
  const GuardSide side = rng.chance(0.5) ? GuardSide::kAfter : GuardSide::kBefore;
  k_pool_ = GuardedBuffer(one_tensor ? 2 * bytes : bytes, side);
  // kMixed: V's pages lie further apart than K's.
  const std::int64_t v_page = page_elements + (c.layout == KvLayout::kMixed ? 3 * c.head_dim : 0);
  const auto v_bytes = static_cast<std::size_t>(num_pages * v_page * size_bytes(c.kv_dtype));
  if (!one_tensor) v_pool_ = GuardedBuffer(v_bytes, side);

  const std::array<std::int64_t, 4> sizes = {num_pages, c.page_size, c.num_kv_heads, c.head_dim};
  const std::int64_t row = c.num_kv_heads * c.head_dim;
  const std::array<std::int64_t, 4> nhd = {page_elements, row, c.head_dim, 1};
  const std::array<std::int64_t, 4> hnd = {page_elements, c.head_dim, c.page_size * c.head_dim, 1};
  const std::array<std::int64_t, 4> hnd_apart = {v_page, c.head_dim, c.page_size * c.head_dim, 1};
  const std::array<std::int64_t, 4> halves = {2 * page_elements, row, c.head_dim, 1};
  const std::array<std::int64_t, 4> interleaved = {2 * page_elements, 2 * row, 2 * c.head_dim, 1};
  auto* base = static_cast<std::uint8_t*>(k_pool_.data());
  const std::int64_t width = size_bytes(c.kv_dtype);
  switch (c.layout) {
    case KvLayout::kNhd:
      k_cache_ = Tensor(base, c.kv_dtype, sizes, nhd);
      v_cache_ = Tensor(v_pool_.data(), c.kv_dtype, sizes, nhd);
      break;
    case KvLayout::kHnd:
      k_cache_ = Tensor(base, c.kv_dtype, sizes, hnd);
      v_cache_ = Tensor(v_pool_.data(), c.kv_dtype, sizes, hnd);
      break;
    case KvLayout::kHalves:
      k_cache_ = Tensor(base, c.kv_dtype, sizes, halves);
      v_cache_ = Tensor(base + page_elements * width, c.kv_dtype, sizes, halves);
      break;
    case KvLayout::kInterleaved:
      k_cache_ = Tensor(base, c.kv_dtype, sizes, interleaved);
      v_cache_ = Tensor(base + c.head_dim * width, c.kv_dtype, sizes, interleaved);
      break;
    case KvLayout::kMixed:
      k_cache_ = Tensor(base, c.kv_dtype, sizes, nhd);
      v_cache_ = Tensor(v_pool_.data(), c.kv_dtype, sizes, hnd_apart);
      break;
  }
  hole_.assign(c.kv_lens.size() * static_cast<std::size_t>(max_pages_), false);
  for (std::size_t i = 0; i < hole_.size(); ++i) hole_[i] = rng.chance(c.hole_share);
  page_table_ =
      GuardedTensor(DType::kInt32, {static_cast<std::int64_t>(c.kv_lens.size()), max_pages_}, side);
  rename_pages(rng.next());
}

void AttentionBatch::rename_pages(std::uint64_t seed) {
  const AttentionCase& c = case_;
  Rng rng(seed);
  std::memset(k_pool_.data(), GuardedBuffer::kUnwritten, k_pool_.size());
  if (v_pool_.size() > 0) std::memset(v_pool_.data(), GuardedBuffer::kUnwritten, v_pool_.size());
  std::vector<std::int32_t> free_pages;
  for (std::int32_t page = 0; page < k_cache_.size(0); ++page) free_pages.push_back(page);
  rng.shuffle(free_pages);

  // What a kernel reads by mistake must not be a page id by chance.
  const std::vector<std::int32_t> unusable = {std::numeric_limits<std::int32_t>::max(),
                                              std::numeric_limits<std::int32_t>::min(), 1 << 30};
  const auto row_bytes = static_cast<std::size_t>(c.head_dim * size_bytes(c.kv_dtype));
  std::int64_t first_token = 0;
  for (std::size_t r = 0; r < c.kv_lens.size(); ++r) {
    const std::int64_t pages = (c.kv_lens[r] + c.page_size - 1) / c.page_size;
    std::int32_t* entries =
        page_table_.tensor().data_as<std::int32_t>() + static_cast<std::int64_t>(r) * max_pages_;
    for (std::int64_t i = 0; i < max_pages_; ++i) {
      if (i >= pages) {
        entries[i] = rng.pick(unusable);
      } else if (hole_[r * static_cast<std::size_t>(max_pages_) + static_cast<std::size_t>(i)]) {
        entries[i] = -1;
      } else {
        entries[i] = free_pages.back();
        free_pages.pop_back();
      }
    }
    for (std::int64_t j = 0; j < c.kv_lens[r]; ++j) {
      const std::int32_t page = entries[j / c.page_size];
      if (page < 0) continue;
      for (std::int64_t head = 0; head < c.num_kv_heads; ++head) {
        const auto place = [&](const Tensor& cache) {
          return cache.select(0, page).select(0, j % c.page_size).select(0, head).data();
        };
        const auto source = [&](const Tensor& packed) {
          return packed.select(0, first_token + j).select(0, head).data();
        };
        std::memcpy(place(k_cache_), source(k_), row_bytes);
        std::memcpy(place(v_cache_), source(v_), row_bytes);
      }
    }
    first_token += c.kv_lens[r];
  }
  hash_ = hash_of_inputs();
}

PagedAttentionArgs AttentionBatch::paged() const {
  PagedAttentionArgs args;
  args.q = q_;
  args.k_cache = k_cache_;
  args.v_cache = v_cache_;
  args.page_table = page_table_;
  args.cu_seqlens_q = cu_seqlens_q_;
  args.kv_lens = kv_lens_;
  args.out = out_;
  args.lse = lse_;
  args.options = options();
  return args;
}

PackedAttentionArgs AttentionBatch::packed() const {
  PackedAttentionArgs args;
  args.q = q_;
  args.k = k_;
  args.v = v_;
  args.cu_seqlens_q = cu_seqlens_q_;
  args.cu_seqlens_k = cu_seqlens_k_;
  args.out = out_;
  args.lse = lse_;
  args.options = options();
  return args;
}

AttentionOptions AttentionBatch::options() const {
  AttentionOptions options;
  options.scale = case_.scale;
  options.causal = case_.causal;
  options.window = case_.window;
  options.softcap = case_.softcap;
  options.alibi_slopes = alibi_;
  options.sinks = sinks_;
  options.q_scale = q_scale_;
  options.k_scale = k_scale_;
  options.v_scale = v_scale_;
  options.out_scale = out_scale_;
  return options;
}

void AttentionBatch::reset_outputs() {
  out_.poison();
  if (case_.lse) lse_.poison();
}

std::size_t AttentionBatch::hash_of_inputs() const {
  std::size_t hash = 0;
  const auto add = [&](const void* data, std::size_t size) {
    const std::string_view bytes(static_cast<const char*>(data), size);
    hash = hash * 0x9e3779b97f4a7c15ULL + std::hash<std::string_view>()(bytes);
  };
  add(k_pool_.data(), k_pool_.size());
  add(v_pool_.data(), v_pool_.size());
  for (const GuardedTensor* tensor :
       {&q_, &k_, &v_, &cu_seqlens_q_, &cu_seqlens_k_, &kv_lens_, &page_table_, &alibi_, &sinks_,
        &q_scale_, &k_scale_, &v_scale_, &out_scale_}) {
    add(tensor->buffer().data(), tensor->buffer().size());
  }
  return hash;
}

std::string AttentionBatch::check_surroundings() const {
  if (!out_.surroundings_intact()) return "memory around out was written";
  if (case_.lse && !lse_.surroundings_intact()) return "memory around lse was written";
  if (!k_pool_.slack_intact() || (v_pool_.size() > 0 && !v_pool_.slack_intact())) {
    return "memory around the KV pool was written";
  }
  return hash_of_inputs() == hash_ ? "" : "an input was written";
}

}  // namespace hpcattn::testkit
