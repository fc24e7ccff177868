// SPDX-License-Identifier: Apache-2.0
#include "src/testing/attention_case_list.h"

#include <limits>

namespace hpcattn::testkit {
namespace {

constexpr DType kF32 = DType::kFloat32;
constexpr DType kF16 = DType::kFloat16;
constexpr DType kBF16 = DType::kBFloat16;
constexpr DType kE4M3 = DType::kFloat8E4M3;
constexpr DType kE5M2 = DType::kFloat8E5M2;

constexpr std::int64_t kLongest = std::numeric_limits<std::int64_t>::max();

}  // namespace

const std::vector<DTypes>& all_dtypes() {
  static const std::vector<DTypes> all = {
      {kF32, kF32, kF32},    {kF32, kF32, kE4M3},   {kF32, kE4M3, kF32},   {kF32, kE4M3, kE4M3},
      {kF32, kE5M2, kF32},   {kF32, kE5M2, kE4M3},  {kF16, kF16, kF16},    {kF16, kF16, kE4M3},
      {kF16, kE4M3, kF16},   {kF16, kE4M3, kE4M3},  {kF16, kE5M2, kF16},   {kF16, kE5M2, kE4M3},
      {kBF16, kBF16, kBF16}, {kBF16, kBF16, kE4M3}, {kBF16, kE4M3, kBF16}, {kBF16, kE4M3, kE4M3},
      {kBF16, kE5M2, kBF16}, {kBF16, kE5M2, kE4M3}, {kE4M3, kE4M3, kF32},  {kE4M3, kE4M3, kF16},
      {kE4M3, kE4M3, kBF16}, {kE4M3, kE4M3, kE4M3}, {kE4M3, kE5M2, kF32},  {kE4M3, kE5M2, kF16},
      {kE4M3, kE5M2, kBF16}, {kE4M3, kE5M2, kE4M3},
  };
  return all;
}

void set_dtypes(AttentionCase& c, const DTypes& dtypes, Scales kind) {
  c.q_dtype = dtypes.q;
  c.kv_dtype = dtypes.kv;
  c.out_dtype = dtypes.out;
  c.q_scale = is_fp8(dtypes.q) ? kind : Scales::kNone;
  if (kind == Scales::kByRequest) kind = Scales::kEach;
  c.k_scale = c.v_scale = is_fp8(dtypes.kv) ? kind : Scales::kNone;
  c.out_scale = is_fp8(dtypes.out);
}

const std::vector<Feature>& all_features() {
  using Case = AttentionCase;
  static const std::vector<Feature> all = {
      {"causal", [](Case&) {}},
      {"bidirectional", [](Case& c) { c.causal = false; }},
      {"window 1", [](Case& c) { c.window = 1; }},
      {"window 17", [](Case& c) { c.window = 17; }},
      {"window past the end", [](Case& c) { c.window = kLongest; }},
      {"bidirectional window", [](Case& c) { c.causal = false, c.window = 9; }},
      {"bidirectional window past the end", [](Case& c) { c.causal = false, c.window = kLongest; }},
      {"scale", [](Case& c) { c.scale = 0.31; }},
      {"negative scale", [](Case& c) { c.scale = -0.05; }},
      {"softcap", [](Case& c) { c.softcap = 1.5; }},
      {"large softcap", [](Case& c) { c.softcap = 50.0; }},
      {"alibi", [](Case& c) { c.alibi = true; }},
      {"bidirectional alibi", [](Case& c) { c.causal = false, c.alibi = true; }},
      {"sinks float32", [](Case& c) { c.sinks = kF32; }},
      {"sinks float16", [](Case& c) { c.sinks = kF16; }},
      {"sinks bfloat16, window", [](Case& c) { c.sinks = kBF16, c.window = 12; }},
      {"softcap, window, scale", [](Case& c) { c.softcap = 30.0, c.window = 40, c.scale = 0.2; }},
      {"missing pages", [](Case& c) { c.hole_share = 0.3, c.sinks = kF32; }},
      {"no lse, strided rows", [](Case& c) { c.lse = false, c.row_gap = 16; }},
      {"one scale for all heads",
       [](Case& c) {
         for (Scales* scales : {&c.q_scale, &c.k_scale, &c.v_scale}) {
           if (*scales == Scales::kEach) *scales = Scales::kOne;
         }
       }},
      {"q's scales by request",
       [](Case& c) {
         if (c.q_scale == Scales::kEach) c.q_scale = Scales::kByRequest;
       }},
      {"everything",
       [](Case& c) {
         c.softcap = 20.0, c.window = 33, c.alibi = true, c.sinks = kBF16, c.hole_share = 0.1;
         c.row_gap = 8, c.layout = KvLayout::kMixed;
       }},
  };
  return all;
}

AttentionCase random_case(std::uint64_t seed) {
  Rng rng(seed * 7919 + 17);
  AttentionCase c;
  c.name = "random";
  c.seed = seed;
  c.head_dim = rng.pick(std::vector<std::int64_t>{64, 80, 96, 128, 192, 256});
  c.num_kv_heads = rng.integer(1, 3);
  c.num_q_heads = c.num_kv_heads * rng.pick(std::vector<std::int64_t>{1, 2, 3, 4, 5, 7, 8, 16});
  c.page_size = 8 * rng.pick(std::vector<std::int64_t>{1, 2, 3, 4, 5, 8, 16, 32});
  c.layout = static_cast<KvLayout>(rng.integer(0, 4));
  set_dtypes(c, rng.pick(all_dtypes()),
             rng.pick(std::vector{Scales::kEach, Scales::kOne, Scales::kByRequest}));

  // Few tokens for many heads, so that the reference stays quick.
  const std::int64_t requests = rng.integer(1, 5);
  const std::int64_t budget = 60'000 / (c.num_q_heads * c.head_dim);
  for (std::int64_t r = 0; r < requests; ++r) {
    const std::int64_t kv_len = rng.chance(0.1) ? 0 : rng.integer(1, rng.chance(0.1) ? 700 : 160);
    std::int64_t q_len = rng.integer(0, rng.chance(0.3) ? budget : 4);
    if (rng.chance(0.9)) q_len = std::min(q_len, kv_len);
    c.q_lens.push_back(static_cast<std::int32_t>(q_len));
    c.kv_lens.push_back(static_cast<std::int32_t>(kv_len));
  }
  c.padding_tokens = rng.integer(0, 3);
  c.lse = rng.chance(0.8);
  c.row_gap = rng.chance(0.3) ? rng.integer(1, 40) : 0;
  c.causal = rng.chance(0.8);
  if (rng.chance(0.4)) c.window = rng.integer(1, rng.chance(0.5) ? 20 : 300);
  if (rng.chance(0.3)) c.softcap = rng.real(0.5, 60.0);
  c.alibi = rng.chance(0.3);
  if (rng.chance(0.3)) c.sinks = rng.pick(std::vector<DType>{kF32, kF16, kBF16});
  if (rng.chance(0.3)) c.scale = rng.real(0.01, 0.6);
  if (rng.chance(0.2)) c.hole_share = rng.real(0.05, 1.0);
  if (rng.chance(0.2)) c.deviation = rng.real(0.1, 4.0);
  return c;
}

}  // namespace hpcattn::testkit
