// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/reference/rope.h"

#include <algorithm>
#include <cmath>

#include "src/cpu/reference/numbers.h"

namespace hpcattn::reference {
namespace {

using Heads = std::vector<std::vector<double>>;  // [num_heads][head_dim]: one token

/// Which request a token belongs to and its number in it; request -1: padding, or not known.
struct Membership {
  std::int64_t request = -1;
  std::int64_t place_in_kv = -1;
};

Membership membership(const RopeNormStoreKvArgs& args, std::int64_t token) {
  Membership found;
  if (!args.cu_seqlens_q.defined()) return found;
  for (std::int64_t request = 0; request + 1 < args.cu_seqlens_q.size(0); ++request) {
    const std::int64_t begin = integer(args.cu_seqlens_q, {request});
    const std::int64_t end = integer(args.cu_seqlens_q, {request + 1});
    if (token < begin || token >= end) continue;
    found.request = request;
    if (args.kv_lens.defined()) {
      found.place_in_kv = integer(args.kv_lens, {request}) - (end - begin) + (token - begin);
    }
  }
  return found;
}

Heads heads_of(const Tensor& tensor, std::int64_t token) {
  Heads heads;
  for (std::int64_t head = 0; head < tensor.size(1); ++head) {
    heads.emplace_back();
    for (std::int64_t d = 0; d < tensor.size(2); ++d)
      heads.back().push_back(element(tensor, {token, head, d}));
  }
  return heads;
}

/// The position that pair `pair` of a token turns by.
std::int64_t position_of(const RopeNormStoreKvArgs& args, std::int64_t token, std::int64_t pair,
                         const Membership& member) {
  if (!args.positions.defined()) return member.place_in_kv;
  if (args.positions.rank() == 1) return integer(args.positions, {token});
  std::int64_t axis = 0;
  for (std::int64_t end = args.mrope_section[0]; pair >= end;)
    end += args.mrope_section[static_cast<std::size_t>(++axis)];
  return integer(args.positions, {axis, token});
}

void rope(Heads& heads, const RopeNormStoreKvArgs& args, std::int64_t token,
          const Membership& member) {
  const std::int64_t num_pairs = args.cos_sin.size(1) / 2;
  for (std::vector<double>& x : heads) {
    for (std::int64_t pair = 0; pair < num_pairs; ++pair) {
      const std::int64_t position = position_of(args, token, pair, member);
      const double cos = element(args.cos_sin, {position, pair});
      const double sin = element(args.cos_sin, {position, num_pairs + pair});
      const bool neox = args.style == RopeStyle::kNeox;
      double& a = x[static_cast<std::size_t>(neox ? pair : 2 * pair)];
      double& b = x[static_cast<std::size_t>(neox ? pair + num_pairs : 2 * pair + 1)];
      const double rotated_a = a * cos - b * sin;
      b = a * sin + b * cos;
      a = rotated_a;
    }
  }
}

double mean_square(const std::vector<double>& x) {
  double sum = 0.0;
  for (double value : x) sum += value * value;
  return sum / static_cast<double>(x.size());
}

void rms_norm(Heads& heads, const Tensor& weight, const RopeNormStoreKvArgs& args) {
  double of_token = 0.0;
  for (const std::vector<double>& x : heads)
    of_token += mean_square(x) / static_cast<double>(heads.size());
  std::int64_t number = 0;  // of an element within the token
  for (std::vector<double>& x : heads) {
    const bool by_head = args.norm_scope == NormScope::kHead;
    const double root = std::sqrt((by_head ? mean_square(x) : of_token) + args.norm_eps);
    for (double& value : x) {
      const std::int64_t at = by_head ? number % static_cast<std::int64_t>(x.size()) : number;
      // Zeros without an epsilon: 0 / 0, for which the operator's page says 0.
      value = root == 0.0 ? 0.0 : value / root * element(weight, {at});
      ++number;
    }
  }
}

void transform(Heads& heads, const Tensor& weight, const RopeNormStoreKvArgs& args,
               std::int64_t token, const Membership& member) {
  if (args.norm_policy == QkNormPolicy::kNormThenRope) rms_norm(heads, weight, args);
  rope(heads, args, token, member);
  if (args.norm_policy == QkNormPolicy::kRopeThenNorm) rms_norm(heads, weight, args);
}

void append(std::vector<double>& all, const Heads& heads, bool padding) {
  for (const std::vector<double>& x : heads) {
    for (double value : x) all.push_back(padding ? 0.0 : value);
  }
}

double scale_of_q_head(const std::vector<double>& x, const RopeNormStoreKvArgs& args) {
  if (args.q_scale.defined()) return element(args.q_scale, {0});
  double amax = 0.0;
  for (double value : x) amax = std::max(amax, std::fabs(value));
  return amax == 0.0 ? 1.0 : amax / args.upper_max;
}

Place place_of(const RopeNormStoreKvArgs& args, std::int64_t token, const Membership& member) {
  Place place;
  if (!args.k_cache.defined()) return place;
  const std::int64_t page_size = args.k_cache.size(1);
  if (args.slot_mapping.defined()) {
    const std::int64_t slot = integer(args.slot_mapping, {token});
    if (slot >= 0) place = {slot / page_size, slot % page_size};
    return place;
  }
  place.page = integer(args.page_table, {member.request, member.place_in_kv / page_size});
  place.offset = member.place_in_kv % page_size;
  return place;
}

}  // namespace

RopeResult rope_norm_store_kv(const RopeNormStoreKvArgs& args) {
  RopeResult result;
  for (std::int64_t token = 0; token < args.q.size(0); ++token) {
    const Membership member = membership(args, token);
    const bool padding = args.cu_seqlens_q.defined() && member.request < 0;
    Heads q = heads_of(args.q, token);
    Heads k = heads_of(args.k, token);
    if (!padding) {
      transform(q, args.q_norm_weight, args, token, member);
      transform(k, args.k_norm_weight, args, token, member);
    }
    append(result.q, q, padding);
    append(result.k, k, padding);
    append(result.v, heads_of(args.v, token), padding);
    for (const std::vector<double>& x : q)
      result.q_scale.push_back(padding ? 0.0 : scale_of_q_head(x, args));
    result.places.push_back(padding ? Place{} : place_of(args, token, member));
  }
  return result;
}

}  // namespace hpcattn::reference
