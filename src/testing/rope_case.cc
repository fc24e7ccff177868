// SPDX-License-Identifier: Apache-2.0
#include "src/testing/rope_case.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>

#include "src/cpu/reference/numbers.h"

namespace hpcattn::testkit {
namespace {

constexpr std::int64_t kOutOfRange = 1 << 30;
constexpr std::int64_t kMorePositions = 9;  // rows of cos_sin past the longest request

GuardSide any_side(Rng& rng) { return rng.chance(0.5) ? GuardSide::kAfter : GuardSide::kBefore; }

/// Rows of padding are no numbers: who reads them shows it.
void poison_rows_from(const Tensor& tensor, std::int64_t first) {
  for (std::int64_t token = first; token < tensor.size(0); ++token) {
    for (std::int64_t head = 0; head < tensor.size(1); ++head) {
      for (std::int64_t d = 0; d < tensor.size(2); ++d) {
        reference::set_element(tensor, {token, head, d}, std::nan(""));
      }
    }
  }
}

}  // namespace

std::string to_string(const RopeCase& c) {
  std::ostringstream text;
  text << c.name << " (seed " << c.seed << "; q";
  for (std::int32_t length : c.q_lens) text << ' ' << length;
  text << "; past";
  for (std::int32_t length : c.past_lens) text << ' ' << length;
  constexpr std::array kPolicies = {"no norm", "rope_then_norm", "norm_then_rope"};
  constexpr std::array kPlaces = {"pages", "slots", "no cache"};
  constexpr std::array kQOutputs = {"own", "in place", "fp8 dynamic", "fp8 static"};
  constexpr std::array kKvOutputs = {"none", "own", "stored"};
  text << "; " << c.num_q_heads << ':' << c.num_kv_heads << " heads, dim " << c.head_dim
       << ", rotary " << c.rotary_dim << ", page " << c.page_size << ", padding "
       << c.padding_tokens << ", " << name(c.dtype) << " to " << name(c.cache_dtype) << ", cos_sin "
       << name(c.cos_sin_dtype) << ", weights " << name(c.weight_dtype) << ", "
       << name(c.index_dtype) << ", " << (c.style == RopeStyle::kNeox ? "neox" : "interleaved")
       << ", " << kPolicies.at(std::size_t(c.policy))
       << (c.scope == NormScope::kToken ? " by token" : "") << ", eps " << c.eps
       << (c.packed ? ", packed" : "") << ", " << name(c.layout) << ", "
       << kPlaces.at(std::size_t(c.places)) << (c.given_positions ? ", positions" : "")
       << (c.mrope ? ", mrope" : "") << (c.lengths ? "" : ", no lengths") << ", holes "
       << c.hole_share << (c.scale_per_head ? ", scale per head" : "") << ", out_q "
       << kQOutputs.at(std::size_t(c.q_output)) << ", out_kv "
       << kKvOutputs.at(std::size_t(c.kv_output)) << ", upper_max " << c.upper_max
       << (c.aligned ? ", aligned)" : ")");
  return text.str();
}

RopeCase random_rope_case(std::uint64_t seed) {
  Rng rng(seed);
  RopeCase c;
  c.name = "random";
  c.seed = seed;
  c.q_lens.clear();
  c.past_lens.clear();
  const std::int64_t num_requests = rng.integer(0, 5);
  for (std::int64_t request = 0; request < num_requests; ++request) {
    c.q_lens.push_back(static_cast<std::int32_t>(rng.chance(0.4) ? 1 : rng.integer(0, 40)));
    c.past_lens.push_back(static_cast<std::int32_t>(rng.chance(0.3) ? 0 : rng.integer(0, 70)));
  }
  c.num_kv_heads = rng.integer(1, 3);
  c.num_q_heads = c.num_kv_heads * rng.integer(1, 5);
  c.head_dim = rng.pick(std::vector<std::int64_t>{64, 80, 96, 128, 192, 256});
  c.rotary_dim = rng.chance(0.5) ? c.head_dim : 2 * rng.integer(0, c.head_dim / 2);
  c.page_size = 8 * rng.integer(1, 4);
  c.padding_tokens = rng.integer(0, 3);
  const std::vector<DType> wide = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  const std::vector<DType> fp8 = {DType::kFloat8E4M3, DType::kFloat8E5M2};
  c.dtype = rng.pick(wide);
  c.cache_dtype = rng.chance(0.5) ? c.dtype : rng.pick(fp8);
  c.cos_sin_dtype = rng.pick(wide);
  c.weight_dtype = rng.chance(0.7) ? rng.pick(wide) : rng.pick(fp8);
  c.index_dtype = rng.chance(0.5) ? DType::kInt32 : DType::kInt64;
  c.style = rng.chance(0.5) ? RopeStyle::kNeox : RopeStyle::kInterleaved;
  c.policy = static_cast<QkNormPolicy>(rng.integer(0, 2));
  c.scope = rng.chance(0.6) ? NormScope::kHead : NormScope::kToken;
  c.eps = rng.pick(std::vector<double>{0.0, 1e-6, 1e-5, 0.25});
  c.packed = rng.chance(0.6);
  c.layout = static_cast<KvLayout>(rng.integer(0, 4));
  c.places = static_cast<Places>(rng.integer(0, 2));
  c.mrope = rng.chance(0.2) && c.rotary_dim > 0;
  c.given_positions = c.mrope || rng.chance(0.4);
  c.lengths = !(c.given_positions && c.places != Places::kPageTable) || rng.chance(0.5);
  c.hole_share = rng.chance(0.3) ? 0.3 : 0.0;
  c.scale_per_head = rng.chance(0.5);
  c.q_output = static_cast<QOutput>(rng.integer(0, 3));
  c.kv_output = static_cast<KvOutput>(rng.integer(0, 2));
  c.upper_max = rng.chance(0.7) ? 448.0 : rng.real(1.0, 448.0);
  c.deviation = rng.chance(0.7) ? 1.0 : rng.pick(std::vector<double>{1e-3, 30.0});
  c.aligned = rng.chance(0.5);
  return c;
}

RopeBatch::RopeBatch(const RopeCase& c) : case_(c) {
  Rng rng(c.seed);
  num_live_ = std::accumulate(c.q_lens.begin(), c.q_lens.end(), std::int64_t{0});
  num_tokens_ = num_live_ + (c.lengths ? c.padding_tokens : 0);
  args_.style = c.style;
  args_.upper_max = c.upper_max;
  make_inputs(rng);
  make_tokens(rng);
  if (c.places != Places::kNoCache) make_pool(rng);
  make_outputs(rng);
  if (c.policy != QkNormPolicy::kNone) make_norm(rng);
}

void RopeBatch::make_inputs(Rng& rng) {
  const RopeCase& c = case_;
  const std::int64_t num_heads = c.num_q_heads + 2 * c.num_kv_heads;
  if (c.packed) {
    qkv_ = GuardedTensor(c.dtype, {num_tokens_, num_heads, c.head_dim}, any_side(rng));
    qkv_.fill_normal(rng, c.deviation);
    args_.q = qkv_.tensor().slice(1, 0, c.num_q_heads);
    args_.k = qkv_.tensor().slice(1, c.num_q_heads, c.num_kv_heads);
    args_.v = qkv_.tensor().slice(1, c.num_q_heads + c.num_kv_heads, c.num_kv_heads);
  } else {
    const std::int64_t gap = rng.chance(0.5) ? 0 : c.aligned ? 16 : 3;
    q_ = GuardedTensor(c.dtype, {num_tokens_, c.num_q_heads, c.head_dim}, any_side(rng), gap);
    k_ = GuardedTensor(c.dtype, {num_tokens_, c.num_kv_heads, c.head_dim}, any_side(rng), gap);
    v_ = GuardedTensor(c.dtype, {num_tokens_, c.num_kv_heads, c.head_dim}, any_side(rng));
    q_.fill_normal(rng, c.deviation);
    k_.fill_normal(rng, c.deviation);
    v_.fill_normal(rng, c.deviation);
    args_.q = q_;
    args_.k = k_;
    args_.v = v_;
  }
  for (const Tensor* rows : {&args_.q, &args_.k, &args_.v}) poison_rows_from(*rows, num_live_);

  std::int64_t longest = 1;
  for (std::size_t i = 0; i < c.q_lens.size(); ++i) {
    longest = std::max<std::int64_t>(longest, c.q_lens[i] + c.past_lens[i]);
  }
  // Any numbers, not points of the unit circle: the formula is what counts (YaRN scales them too).
  cos_sin_ =
      GuardedTensor(c.cos_sin_dtype, {longest + kMorePositions, c.rotary_dim}, any_side(rng));
  cos_sin_.fill_normal(rng);
  args_.cos_sin = cos_sin_;
}

GuardedTensor RopeBatch::indices(const std::vector<std::int64_t>& values) const {
  if (case_.index_dtype == DType::kInt64) return GuardedTensor::of_ints(values);
  return GuardedTensor::of_ints(std::vector<std::int32_t>(values.begin(), values.end()));
}

void RopeBatch::make_tokens(Rng& rng) {
  const RopeCase& c = case_;
  std::vector<std::int64_t> cu_seqlens = {0};
  std::vector<std::int64_t> kv_lens;
  for (std::size_t i = 0; i < c.q_lens.size(); ++i) {
    cu_seqlens.push_back(cu_seqlens.back() + c.q_lens[i]);
    kv_lens.push_back(c.past_lens[i] + c.q_lens[i]);
  }
  if (c.lengths) {
    cu_seqlens_q_ = indices(cu_seqlens);
    kv_lens_ = indices(kv_lens);
    args_.cu_seqlens_q = cu_seqlens_q_;
    args_.kv_lens = kv_lens_;
  }
  if (!c.given_positions) return;
  std::vector<std::int64_t> positions;
  for (std::int64_t axis = 0; axis < (c.mrope ? 3 : 1); ++axis) {
    for (std::int64_t token = 0; token < num_tokens_; ++token) {
      positions.push_back(token < num_live_ ? rng.integer(0, args_.cos_sin.size(0) - 1)
                                            : kOutOfRange);
    }
  }
  positions_ = indices(positions);
  args_.positions = positions_;
  if (!c.mrope) return;
  const std::array<std::int64_t, 2> sizes = {3, num_tokens_};
  const std::array<std::int64_t, 2> strides = {num_tokens_, 1};
  args_.positions = Tensor(positions_.tensor().data(), c.index_dtype, sizes, strides);
  const std::int64_t half = c.rotary_dim / 2;
  const std::int64_t first = rng.integer(0, half);
  const std::int64_t second = rng.integer(0, half - first);
  args_.mrope_section = {first, second, half - first - second};
}

void RopeBatch::make_pool(Rng& rng) {
  const RopeCase& c = case_;
  std::int64_t num_pages = 3;
  for (std::size_t i = 0; i < c.q_lens.size(); ++i) {
    num_pages += (c.q_lens[i] + c.past_lens[i] + c.page_size - 1) / c.page_size;
  }
  pool_ = KvPool({.layout = c.layout,
                  .dtype = c.cache_dtype,
                  .num_pages = num_pages,
                  .page_size = c.page_size,
                  .num_kv_heads = c.num_kv_heads,
                  .head_dim = c.head_dim,
                  .side = any_side(rng)});
  args_.k_cache = pool_.k();
  args_.v_cache = pool_.v();
  if (c.places == Places::kSlotMapping) return make_slot_mapping(rng);
  make_page_table(rng);
}

void RopeBatch::make_slot_mapping(Rng& rng) {
  std::vector<std::int64_t> slots(static_cast<std::size_t>(pool_.k().size(0) * case_.page_size));
  std::iota(slots.begin(), slots.end(), 0);
  rng.shuffle(slots);
  slots.resize(static_cast<std::size_t>(num_tokens_));
  for (std::size_t token = 0; token < slots.size(); ++token) {
    if (rng.chance(case_.hole_share)) slots[token] = -1;
    if (static_cast<std::int64_t>(token) >= num_live_) slots[token] = kOutOfRange;
  }
  slot_mapping_ = indices(slots);
  args_.slot_mapping = slot_mapping_;
}

void RopeBatch::make_page_table(Rng& rng) {
  const RopeCase& c = case_;
  std::vector<std::int64_t> free_pages(static_cast<std::size_t>(pool_.k().size(0)));
  std::iota(free_pages.begin(), free_pages.end(), 0);
  rng.shuffle(free_pages);
  std::int64_t max_pages = 1;
  for (std::size_t i = 0; i < c.q_lens.size(); ++i) {
    max_pages = std::max<std::int64_t>(max_pages, (c.q_lens[i] + c.past_lens[i]) / c.page_size + 1);
  }
  std::vector<std::int64_t> table(c.q_lens.size() * static_cast<std::size_t>(max_pages),
                                  kOutOfRange);
  for (std::size_t i = 0; i < c.q_lens.size(); ++i) {
    // Pages before the new tokens are not this operator's business: they stay out of range.
    const std::int64_t first = c.past_lens[i] / c.page_size;
    const std::int64_t end = (c.past_lens[i] + c.q_lens[i] + c.page_size - 1) / c.page_size;
    for (std::int64_t page = first; c.q_lens[i] > 0 && page < end; ++page) {
      table[i * static_cast<std::size_t>(max_pages) + static_cast<std::size_t>(page)] =
          rng.chance(c.hole_share) ? -1 : free_pages.back();
      free_pages.pop_back();
    }
  }
  page_table_ = indices(table);
  const std::array<std::int64_t, 2> sizes = {static_cast<std::int64_t>(c.q_lens.size()), max_pages};
  const std::array<std::int64_t, 2> strides = {max_pages, 1};
  args_.page_table = Tensor(page_table_.tensor().data(), c.index_dtype, sizes, strides);
}

void RopeBatch::make_outputs(Rng& rng) {
  const RopeCase& c = case_;
  const std::int64_t gap_unit = c.aligned ? 16 : 1;
  const bool q_fp8 = c.q_output == QOutput::kFp8Dynamic || c.q_output == QOutput::kFp8Static;
  const std::vector<std::int64_t> q_sizes = {num_tokens_, c.num_q_heads, c.head_dim};
  if (c.q_output == QOutput::kInPlace) {
    args_.out_q = args_.q;
  } else {
    out_q_ = GuardedTensor(q_fp8 ? DType::kFloat8E4M3 : c.dtype, q_sizes, any_side(rng),
                           gap_unit * rng.integer(0, 5));
    args_.out_q = out_q_;
  }
  if (c.q_output == QOutput::kFp8Static) {
    q_scale_ = GuardedTensor::of_floats({rng.real(0.01, 0.3)});
    args_.q_scale = q_scale_;
  }
  if (c.q_output == QOutput::kFp8Dynamic || (q_fp8 && rng.chance(0.3))) {
    out_q_scale_ = GuardedTensor(DType::kFloat32, {num_tokens_, c.num_q_heads}, any_side(rng), 1);
    args_.out_q_scale = out_q_scale_;
  }

  if (rng.chance(0.3)) {
    cleared_ =
        GuardedTensor(DType::kInt32, {rng.integer(1, 3), rng.integer(1, 300)}, any_side(rng));
    args_.cleared = cleared_;
  }

  const bool has_cache = c.places != Places::kNoCache;
  const DType kv_dtype = c.kv_output == KvOutput::kStored ? c.cache_dtype : c.dtype;
  if (c.kv_output != KvOutput::kNone) {
    const std::vector<std::int64_t> kv_sizes = {num_tokens_, c.num_kv_heads, c.head_dim};
    out_k_ = GuardedTensor(kv_dtype, kv_sizes, any_side(rng), gap_unit * rng.integer(0, 5));
    out_v_ = GuardedTensor(kv_dtype, kv_sizes, any_side(rng));
    args_.out_k = out_k_;
    args_.out_v = out_v_;
  }
  const bool scaled =
      (has_cache && is_fp8(c.cache_dtype)) || (args_.out_k.defined() && is_fp8(kv_dtype));
  if (!scaled) return;
  const auto make_scale = [&] {
    std::vector<double> values(static_cast<std::size_t>(c.scale_per_head ? c.num_kv_heads : 1));
    for (double& value : values) value = rng.real(0.05, 0.2) * c.deviation;
    return GuardedTensor::of_floats(values);
  };
  k_scale_ = make_scale();
  v_scale_ = make_scale();
  args_.k_scale = k_scale_;
  args_.v_scale = v_scale_;
}

void RopeBatch::make_norm(Rng& rng) {
  const RopeCase& c = case_;
  args_.norm_policy = c.policy;
  args_.norm_scope = c.scope;
  args_.norm_eps = c.eps;
  const auto make_weight = [&](std::int64_t num_heads) {
    GuardedTensor weight(c.weight_dtype,
                         {c.head_dim * (c.scope == NormScope::kToken ? num_heads : 1)},
                         any_side(rng));
    weight.fill_normal(rng);
    return weight;
  };
  q_weight_ = make_weight(c.num_q_heads);
  k_weight_ = make_weight(c.num_kv_heads);
  args_.q_norm_weight = q_weight_;
  args_.k_norm_weight = k_weight_;
}

}  // namespace hpcattn::testkit
