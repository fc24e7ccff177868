// SPDX-License-Identifier: Apache-2.0
// The arithmetic of kernels/fused/rope_pairs as the host compiles it: what float32 makes of a row
// is within one ulp of the output's dtype of the right value rounded once.
#include "src/cuda/rope_pairs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "kernels/fused/rope_pairs/turn.h"
#include "src/cpu/reference/numbers.h"
#include "src/testing/random.h"
#include "src/testing/rounded_check.h"

namespace hpcattn::cuda {
namespace {

using testkit::Rng;

constexpr std::int64_t kDim = 128;
constexpr int kLanes = pairs_lanes(kDim);

enum class Numbers { kNormal, kCancelling, kNearTies, kSparse, kAnySize };

/// A row and all that it is turned by.
struct Row {
  std::vector<std::uint16_t> codes = std::vector<std::uint16_t>(kDim);
  std::vector<float> weights = std::vector<float>(kDim, 1.0F);
  std::vector<float> cos_sin = std::vector<float>(kDim);  // 64 cosines, then sines
  double eps = 0.0;
  float scale = 1.0F;  // that an fp8 output is divided by
};

template <RopePairsSpec kSpec>
double x_of(const Row& row, std::int64_t element) {
  return reference::decode(row.codes[std::size_t(element)], kSpec.dtype);
}

template <RopePairsSpec kSpec>
std::pair<std::int64_t, std::int64_t> members(std::int64_t pair) {
  if (kSpec.interleaved) return {2 * pair, 2 * pair + 1};
  return {pair, pair + kDim / 2};
}

/// What the kernel does to a row, lane by lane, in the order of its shuffles.
template <RopePairsSpec kSpec>
struct TurnedRow {
  std::vector<LaneTurned> lanes = std::vector<LaneTurned>(kLanes);
  float factor = 1.0F;
  int num_careful = 0;
};

template <RopePairsSpec kSpec, bool kDoubts = true>
TurnedRow<kSpec> turn(const Row& row, DType out) {
  RopeParams p;
  p.head_dim = p.rotary_dim = static_cast<std::int32_t>(kDim);
  p.cos_sin_dtype = DType::kFloat32;
  const WeightView weights{.data = reinterpret_cast<const char*>(row.weights.data()),
                           .stride = 4,
                           .dtype = DType::kFloat32,
                           .vectors = true};
  const char* table = reinterpret_cast<const char*>(row.cos_sin.data());
  TurnedRow<kSpec> turned_row;
  const auto turn_scaled = [&](float scale) {
    std::vector<float> sums;
    for (int lane = 0; lane < kLanes; ++lane) {
      const LanePieces pieces = pieces_of<kSpec.interleaved>(p, lane);
      PairTurns turns;
      load_turns<kSpec>(p, weights, table, pieces, turns);
      LaneNumbers x;
      for (int i = 0; i < 16; ++i) {
        const std::int64_t element = i < 8 ? pieces.first + i : pieces.second + i - 8;
        x.of[i] = static_cast<float>(x_of<kSpec>(row, element)) * scale;
      }
      LaneTurned& found = turned_row.lanes[std::size_t(lane)];
      found = turned<kSpec, kDoubts>(x, turns, doubtful_share(out));
      sums.push_back(found.squares);
      for (int pair = 0; pair < kLanePairs; ++pair) {
        if ((found.doubtful >> (kLanePairs - 1 - pair) & 1U) == 0) continue;
        ++turned_row.num_careful;
        const int at_a = place_of_a<kSpec.interleaved>(pair);
        const int at_b = place_of_b<kSpec.interleaved>(pair);
        const auto weight = [&](int at) {
          if (kSpec.norm == PairsNorm::kNone) return 1.0F;
          return row.weights[std::size_t(at < 8 ? pieces.first + at : pieces.second + at - 8)];
        };
        const CarefulPair y = turned_carefully<kSpec>(
            {.a = x.of[at_a],
             .b = x.of[at_b],
             .weight_a = weight(at_a),
             .weight_b = weight(at_b),
             .cos = row.cos_sin[std::size_t(pieces.pair + pair)],
             .sin = row.cos_sin[std::size_t(kDim / 2 + pieces.pair + pair)]},
            true);
        found.y.of[at_a] = y.a;
        found.y.of[at_b] = y.b;
      }
    }
    for (std::size_t distance = kLanes / 2; distance > 0; distance /= 2) {
      for (std::size_t lane = 0; lane < distance; ++lane) sums[lane] += sums[lane + distance];
    }
    return sums[0];
  };
  const auto under_root = [&](float scale) {
    const auto eps = static_cast<float>(row.eps * double{scale} * double{scale});
    return fmaf(turn_scaled(scale), 1.0F / static_cast<float>(kDim), eps);
  };
  float mean = under_root(1.0F);
  if constexpr (kSpec.norm != PairsNorm::kNone) {
    if (!(mean >= 0x1p-80F && mean <= 0x1p100F)) {
      mean = under_root(mean < 0x1p-80F ? kTinyRowScale : kHugeRowScale);
    }
    turned_row.factor = reciprocal_root(mean);
  }
  return turned_row;
}

/// The right values, and the sizes of the products that they are sums of.
struct Right {
  std::vector<long double> y = std::vector<long double>(kDim);
  std::vector<long double> products = std::vector<long double>(kDim);
};

template <RopePairsSpec kSpec>
Right right_values(const Row& row) {
  constexpr bool kBefore = kSpec.norm == PairsNorm::kBeforeRope;
  constexpr bool kAfter = kSpec.norm == PairsNorm::kAfterRope;
  Right right;
  long double squares = 0.0L;
  for (std::int64_t pair = 0; pair < kDim / 2; ++pair) {
    const auto [at_a, at_b] = members<kSpec>(pair);
    const auto weight = [&](std::int64_t at) {
      return kBefore ? static_cast<long double>(row.weights[std::size_t(at)]) : 1.0L;
    };
    const long double a = static_cast<long double>(x_of<kSpec>(row, at_a)) * weight(at_a);
    const long double b = static_cast<long double>(x_of<kSpec>(row, at_b)) * weight(at_b);
    const long double cos = row.cos_sin[std::size_t(pair)];
    const long double sin = row.cos_sin[std::size_t(kDim / 2 + pair)];
    right.y[std::size_t(at_a)] = a * cos - b * sin;
    right.y[std::size_t(at_b)] = b * cos + a * sin;
    right.products[std::size_t(at_a)] = std::fabs(a * cos) + std::fabs(b * sin);
    right.products[std::size_t(at_b)] = std::fabs(b * cos) + std::fabs(a * sin);
    for (std::int64_t at : {at_a, at_b}) {
      const auto x = static_cast<long double>(x_of<kSpec>(row, at));
      const long double member = kAfter ? right.y[std::size_t(at)] : x;
      squares += member * member;
    }
  }
  if (kSpec.norm == PairsNorm::kNone) return right;
  const long double under_root = squares / kDim + static_cast<long double>(row.eps);
  const long double factor = under_root == 0.0L ? 0.0L : 1.0L / std::sqrt(under_root);
  for (std::size_t i = 0; i < kDim; ++i) {
    const long double by = kAfter ? factor * static_cast<long double>(row.weights[i]) : factor;
    right.y[i] *= by;
    right.products[i] *= std::fabs(by);
  }
  return right;
}

std::uint32_t code_of(const LaneWords& words, int at, DType dtype) {
  const int bits = 8 * static_cast<int>(size_bytes(dtype));
  const int per_word = 32 / bits;
  return words.words[at / per_word] >> (at % per_word * bits) & ((1U << bits) - 1);
}

template <RopePairsSpec kSpec>
LaneWords encoded_as(DType out, const LaneNumbers& y, float factor, float scale) {
  if (out == DType::kFloat8E4M3) return encoded_over<DType::kFloat8E4M3>(y, factor, scale);
  if (out == DType::kFloat8E5M2) return encoded_over<DType::kFloat8E5M2>(y, factor, scale);
  return encoded_over<kSpec.dtype>(y, factor, 1.0F);
}

/// How many ulps the worst element of a turned row is off, over `scale`.
template <RopePairsSpec kSpec>
std::int64_t worst_ulps(const Row& row, const TurnedRow<kSpec>& got, DType out, float scale) {
  const Right right = right_values<kSpec>(row);
  RopeParams p;
  p.head_dim = p.rotary_dim = static_cast<std::int32_t>(kDim);
  const long double divisor = is_fp8(out) ? static_cast<long double>(scale) : 1.0L;
  std::int64_t worst = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    const LanePieces pieces = pieces_of<kSpec.interleaved>(p, lane);
    const LaneWords words =
        encoded_as<kSpec>(out, got.lanes[std::size_t(lane)].y, got.factor, scale);
    for (int i = 0; i < 16; ++i) {
      const auto element = std::size_t(i < 8 ? pieces.first + i : pieces.second + i - 8);
      const long double want = right.y[element] / divisor;
      const std::uint32_t code = code_of(words, i, out);
      const long double error =
          std::fabs(static_cast<long double>(reference::decode(code, out)) - want);
      // Of products that cancel to less than this, two float32 leave something.
      if (error <= 0x1p-44L * right.products[element] / divisor) continue;
      const std::uint32_t wanted = reference::encode(static_cast<double>(want), out);
      worst = std::max(worst, testkit::ulps_between(code, wanted, out));
    }
  }
  return worst;
}

template <RopePairsSpec kSpec>
std::int64_t worst_ulps(const Row& row, DType out) {
  return worst_ulps(row, turn<kSpec>(row, out), out, row.scale);
}

template <RopePairsSpec kSpec>
Row random_row(Rng& rng, Numbers numbers, DType out) {
  Row row;
  const auto encode = [](double x) {
    return static_cast<std::uint16_t>(reference::encode(x, kSpec.dtype));
  };
  const bool half = kSpec.dtype == DType::kFloat16;
  // Without a norm, what leaves float32's range stays outside of it.
  const bool normed = kSpec.norm != PairsNorm::kNone;
  const int most = half ? 12 : normed ? 120 : 100;
  const double size =
      std::ldexp(1.0, numbers == Numbers::kAnySize ? int(rng.integer(-most, most)) : 0);
  for (std::uint16_t& code : row.codes) {
    const bool zero = numbers == Numbers::kSparse && rng.chance(0.8);
    code = encode(zero ? 0.0 : rng.normal() * size);
  }
  for (float& weight : row.weights) {
    weight = static_cast<float>(rng.chance(0.5) ? rng.real(0.5, 1.5) : rng.normal());
    if (rng.chance(0.3)) weight = bfloat16_to_float(float_to_bfloat16(weight));
  }
  for (float& number : row.cos_sin) number = static_cast<float>(rng.normal());
  if (rng.chance(0.7)) {  // an angle
    for (std::size_t pair = 0; pair < kDim / 2; ++pair) {
      const double angle = rng.real(0.0, 6.3);
      row.cos_sin[pair] = static_cast<float>(std::cos(angle));
      row.cos_sin[kDim / 2 + pair] = static_cast<float>(std::sin(angle));
    }
  }
  row.eps = rng.pick(std::vector<double>{0.0, 1e-6, 1e-5, 0.25});
  const int exponent = rng.chance(0.8) ? int(rng.integer(-8, 4)) : int(rng.integer(-126, 126));
  row.scale = static_cast<float>(std::ldexp(rng.real(1.0, 2.0), exponent));
  if (numbers != Numbers::kCancelling && numbers != Numbers::kNearTies) return row;
  for (std::int64_t pair = 0; pair < kDim / 2; ++pair) {
    const auto [at_a, at_b] = members<kSpec>(pair);
    const bool before = kSpec.norm == PairsNorm::kBeforeRope;
    const double a =
        x_of<kSpec>(row, at_a) * (before ? double{row.weights[std::size_t(at_a)]} : 1.0);
    const double b =
        x_of<kSpec>(row, at_b) * (before ? double{row.weights[std::size_t(at_b)]} : 1.0);
    if (a == 0.0 || b == 0.0) continue;
    const double sin = row.cos_sin[std::size_t(kDim / 2 + pair)];
    double left = 0.0;  // of a * cos - b * sin
    if (numbers == Numbers::kCancelling) {
      left = std::ldexp(b * sin, -int(rng.integer(4, 30)));
    } else {  // in the middle between two numbers of the output's dtype, or of fp8's over a scale
      const DType dtype = is_fp8(out) ? out : kSpec.dtype;
      const std::uint32_t code = reference::encode(std::fabs(a), dtype);
      left = (reference::decode(code, dtype) + reference::decode(code + 1, dtype)) / 2;
      row.scale = 1.0F;
    }
    const auto cos = static_cast<float>((b * sin + left) / a);
    if (std::isfinite(cos)) row.cos_sin[std::size_t(pair)] = cos;
  }
  return row;
}

template <DType kDType, PairsNorm kNorm, bool kInterleaved>
void expect_within_one_ulp() {
  constexpr RopePairsSpec kSpec{.dtype = kDType, .norm = kNorm, .interleaved = kInterleaved};
  for (DType out : {kDType, DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    for (Numbers numbers : {Numbers::kNormal, Numbers::kCancelling, Numbers::kNearTies,
                            Numbers::kSparse, Numbers::kAnySize}) {
      Rng rng(1 + static_cast<std::uint64_t>(out) * 8 + static_cast<std::uint64_t>(numbers));
      for (int round = 0; round < 400; ++round) {
        const Row row = random_row<kSpec>(rng, numbers, out);
        ASSERT_LE(worst_ulps<kSpec>(row, out), 1)
            << name(kDType) << " to " << name(out) << ", norm " << int(kNorm) << ", numbers "
            << int(numbers) << ", round " << round;
      }
    }
  }
}

template <DType kDType>
void expect_all_within_one_ulp() {
  expect_within_one_ulp<kDType, PairsNorm::kNone, false>();
  expect_within_one_ulp<kDType, PairsNorm::kBeforeRope, false>();
  expect_within_one_ulp<kDType, PairsNorm::kAfterRope, false>();
  expect_within_one_ulp<kDType, PairsNorm::kBeforeRope, true>();
}

TEST(RopePairsArithmetic, IsWithinOneUlpOfBFloat16) {
  expect_all_within_one_ulp<DType::kBFloat16>();
}

TEST(RopePairsArithmetic, IsWithinOneUlpOfFloat16) { expect_all_within_one_ulp<DType::kFloat16>(); }

TEST(RopePairsArithmetic, SeldomTurnsAPairTwice) {
  constexpr RopePairsSpec kSpec{.norm = PairsNorm::kBeforeRope};
  Rng rng(7);
  int num_careful = 0;
  constexpr int kRows = 2000;
  for (int i = 0; i < kRows; ++i) {
    const Row row = random_row<kSpec>(rng, Numbers::kNormal, kSpec.dtype);
    num_careful += turn<kSpec>(row, kSpec.dtype).num_careful;
  }
  EXPECT_GT(num_careful, 0);
  EXPECT_LT(num_careful, kRows / 50);  // a warp's step has four rows
}

/// q in fp8 by its own scale is not looked at again where no weights come after RoPE.
template <PairsNorm kNorm>
void expect_right_by_own_scale() {
  constexpr RopePairsSpec kSpec{.norm = kNorm};
  constexpr DType kOut = DType::kFloat8E4M3;
  Rng rng(9);
  for (double upper_max : {448.0, 20.0, 0.01}) {
    RopePairsParams p;
    p.upper_max = static_cast<float>(upper_max);
    p.inverse_upper_max = static_cast<float>(1.0 / upper_max);
    for (Numbers numbers : {Numbers::kNormal, Numbers::kCancelling, Numbers::kSparse}) {
      for (int round = 0; round < 400; ++round) {
        const Row row = random_row<kSpec>(rng, numbers, kSpec.dtype);
        const auto got = turn<kSpec, /*kDoubts=*/false>(row, kOut);
        float largest = 0.0F;
        for (const LaneTurned& lane : got.lanes) largest = std::max(largest, largest_of(lane.y));
        const float scale = own_scale(p, largest * got.factor);
        ASSERT_LE(worst_ulps(row, got, kOut, scale), 1) << int(numbers) << ", round " << round;
      }
    }
  }
}

TEST(RopePairsArithmetic, OwnScalesNeedNoSecondTurn) {
  expect_right_by_own_scale<PairsNorm::kNone>();
  expect_right_by_own_scale<PairsNorm::kBeforeRope>();
}

TEST(RopePairsArithmetic, ScalesBringTheLargestToTheMost) {
  Rng rng(8);
  for (double upper_max : {448.0, 1.0, 240.0, 13.7}) {
    RopePairsParams p;
    p.upper_max = static_cast<float>(upper_max);
    p.inverse_upper_max = static_cast<float>(1.0 / upper_max);
    for (int i = 0; i < 10000; ++i) {
      const auto amax =
          static_cast<float>(std::ldexp(rng.real(1.0, 2.0), int(rng.integer(-110, 120))));
      const double right = double{amax} / double{p.upper_max};
      ASSERT_NEAR(double{own_scale(p, amax)}, right, right * 0x1p-22);
    }
    EXPECT_EQ(own_scale(p, 0.0F), 1.0F);
    EXPECT_EQ(own_scale(p, std::nanf("")), 1.0F);
    EXPECT_EQ(own_scale(p, 0x1p-149F), 0x1p-126F);
  }
}

/// What is launched for so many tokens of heads of 128, on a GPU of 132 multiprocessors.
RopePairsParams params_of(std::int64_t tokens, std::int64_t q_heads, std::int64_t kv_heads,
                          DType out_q = DType::kBFloat16) {
  const auto rows = [tokens](DType dtype, std::int64_t heads) {
    return Tensor::contiguous(nullptr, dtype, {tokens, heads, 128});
  };
  RopeNormStoreKvArgs args{.q = rows(DType::kBFloat16, q_heads),
                           .k = rows(DType::kBFloat16, kv_heads),
                           .v = rows(DType::kBFloat16, kv_heads),
                           .cos_sin = Tensor::contiguous(nullptr, DType::kFloat32, {1000, 128}),
                           .out_q = rows(out_q, q_heads)};
  return rope_pairs_params(args, 132, nullptr);
}

TEST(RopePairsSteps, FewHeadsLeaveNoTeamIdle) {
  // Few tokens: neighbouring heads, as many as there are KV heads.
  EXPECT_EQ(params_of(1, 64, 8).step_heads, 4);
  EXPECT_EQ(params_of(64, 64, 8).group_tokens, 1);
  EXPECT_EQ(params_of(64, 8, 2).step_heads, 2);
  EXPECT_EQ(params_of(64, 8, 1).group_tokens, 4);
  EXPECT_EQ(params_of(1, 8, 1).group_tokens, 1);  // there is no other token
  EXPECT_EQ(params_of(2, 8, 1).group_tokens, 2);
  EXPECT_EQ(params_of(1, 8, 1).num_units, 4);
  EXPECT_EQ(params_of(65, 8, 1).num_units, 17 * 10);
  // Many: a head of each token.
  EXPECT_EQ(params_of(8192, 64, 8).step_heads, 1);
  EXPECT_EQ(params_of(8192, 64, 8).group_tokens, 4);
}

TEST(RopePairsSteps, UnitsFillWholeRounds) {
  constexpr int kWarps = 132 * kPairsCtasPerSm * kPairsWarps;
  EXPECT_EQ(params_of(2048, 64, 8).num_units, kWarps);
  EXPECT_EQ(params_of(8192, 64, 8).num_units, 3 * kWarps);
  EXPECT_EQ(params_of(8192, 64, 8, DType::kFloat8E4M3).num_units, kWarps);
  EXPECT_EQ(params_of(1 << 17, 64, 8).num_units, kPairsMostRounds * kWarps);
  for (std::int64_t tokens : {1, 3, 100, 2048, 8191}) {
    for (std::int64_t kv_heads : {1, 3, 8}) {
      const RopePairsParams p = params_of(tokens, 24, kv_heads);
      const std::int64_t groups = (tokens + p.group_tokens - 1) / p.group_tokens;
      EXPECT_EQ(std::int64_t{p.unit_steps} * p.num_units + p.longer_units, groups * p.num_steps());
      EXPECT_GE(p.q_steps * p.step_heads, 24);
      EXPECT_GE(p.kv_steps * p.step_heads, kv_heads);
      EXPECT_LT(p.longer_units, p.num_units);
    }
  }
}

TEST(RopePairsVariants, EveryVariantIsListedOnce) {
  std::set<std::string> names;
  for (const KernelVariant& variant : all_rope_pairs_variants()) names.insert(variant.name);
  EXPECT_EQ(names.size(), 36U);
}

}  // namespace
}  // namespace hpcattn::cuda
