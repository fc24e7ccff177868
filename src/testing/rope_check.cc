// SPDX-License-Identifier: Apache-2.0
// Judging a call of rope_norm_store_kv.
#include <algorithm>
#include <cmath>

#include "src/cpu/reference/numbers.h"
#include "src/testing/rope_case.h"
#include "src/testing/rounded_check.h"

namespace hpcattn::testkit {

std::vector<double> RopeBatch::in_units_of(DType dtype, std::vector<double> values,
                                           const Tensor& scale) const {
  if (!is_fp8(dtype)) return values;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / case_.head_dim;
    values[i] /= reference::scale_of(scale, row % case_.num_kv_heads);
  }
  return values;
}

std::string RopeBatch::check_q(const reference::RopeResult& want,
                               const RopeTolerance& tolerance) const {
  const bool fp8 = is_fp8(args_.out_q.dtype());
  RoundedCheck values("out_q", tolerance.nearness);
  RoundedCheck scales("out_q_scale");
  std::size_t row = 0;
  for (std::int64_t token = 0; token < num_tokens_; ++token) {
    for (std::int64_t head = 0; head < case_.num_q_heads; ++head, ++row) {
      double scale = fp8 && token < num_live_ ? want.q_scale[row] : 1.0;
      if (args_.out_q_scale.defined()) {
        const double right = want.q_scale[row];
        const double got = reference::element(args_.out_q_scale, {token, head});
        if (!(std::fabs(got - right) <= tolerance.scale_error * right)) {
          scales.add(args_.out_q_scale, {token, head}, right);
        }
        // The number is made with the scale that was handed out, a float32.
        if (token < num_live_) scale = reference::element(args_.out_q_scale, {token, head});
      }
      const std::size_t first = row * static_cast<std::size_t>(case_.head_dim);
      const double largest = largest_of(want.q, first, case_.head_dim);
      for (std::int64_t d = 0; d < case_.head_dim; ++d) {
        const double value = want.q[first + static_cast<std::size_t>(d)];
        values.add(args_.out_q, {token, head, d}, value / scale, largest / scale);
      }
    }
  }
  return values.failure() + scales.failure();
}

std::string RopeBatch::check_kv_output(const Tensor& got, const std::string& label,
                                       std::vector<double> want, const Tensor& scale,
                                       Nearness nearness) const {
  if (!got.defined()) return "";
  const std::vector<double> stored = in_units_of(got.dtype(), std::move(want), scale);
  RoundedCheck values(label, nearness);
  std::size_t at = 0;
  for (std::int64_t token = 0; token < num_tokens_; ++token) {
    for (std::int64_t head = 0; head < case_.num_kv_heads; ++head) {
      const double largest = largest_of(stored, at, case_.head_dim);
      for (std::int64_t d = 0; d < case_.head_dim; ++d) {
        values.add(got, {token, head, d}, stored[at++], largest);
      }
    }
  }
  return values.failure();
}

std::string RopeBatch::run_and_check(const Execution& execution) {
  const auto call = [&](const RopeNormStoreKvArgs& args) {
    rope_norm_store_kv(args, execution);
    return std::string();
  };
  return run_and_check_by(call);
}

std::string RopeBatch::run_and_check_by(
    const std::function<std::string(const RopeNormStoreKvArgs&)>& call,
    const RopeTolerance& tolerance) {
  const reference::RopeResult want = reference::rope_norm_store_kv(args_);
  const auto before = bytes();
  std::string failure = call(args_);

  failure += check_q(want, tolerance);
  failure += check_kv_output(args_.out_k, "out_k", want.k, args_.k_scale, tolerance.nearness);
  failure += check_kv_output(args_.out_v, "out_v", want.v, args_.v_scale, tolerance.nearness);
  if (args_.k_cache.defined()) {
    const DType dtype = args_.k_cache.dtype();
    failure += pool_.check(want.places, in_units_of(dtype, want.k, args_.k_scale),
                           in_units_of(dtype, want.v, args_.v_scale), tolerance.nearness);
  }
  if (args_.cleared.defined()) {
    const std::vector<std::uint8_t> counters = cleared_.bytes();
    if (std::ranges::any_of(counters, [](std::uint8_t byte) { return byte != 0; })) {
      failure += "cleared is not 0\n";
    }
  }
  const auto after = bytes();
  constexpr std::size_t kFirstOutput = 15;
  for (std::size_t i = 0; i < kFirstOutput; ++i) {
    const bool in_place = case_.q_output == QOutput::kInPlace && i < 2;
    if (!in_place && before[i] != after[i])
      failure += "input " + std::to_string(i) + " was written\n";
  }
  for (const GuardedTensor* tensor :
       {&qkv_, &q_, &k_, &v_, &out_q_, &out_k_, &out_v_, &out_q_scale_, &cleared_}) {
    if (tensor->tensor().defined() && !tensor->surroundings_intact()) {
      failure += "memory beside " + to_string(tensor->tensor()) + " was written\n";
    }
  }
  if (case_.q_output == QOutput::kInPlace && case_.packed) {
    for (const Tensor& rows : {args_.k, args_.v}) {
      const auto offset =
          static_cast<std::size_t>(rows.data_as<char>() - qkv_.tensor().data_as<char>());
      const auto row_bytes =
          static_cast<std::size_t>(rows.size(1) * rows.size(2) * size_bytes(rows.dtype()));
      const auto token_bytes = static_cast<std::size_t>(rows.stride(0) * size_bytes(rows.dtype()));
      for (std::size_t token = 0; token < static_cast<std::size_t>(num_tokens_); ++token) {
        const auto begin = static_cast<std::ptrdiff_t>(offset + token * token_bytes);
        const auto end = begin + static_cast<std::ptrdiff_t>(row_bytes);
        if (!std::equal(before[0].begin() + begin, before[0].begin() + end,
                        after[0].begin() + begin)) {
          failure += "k or v beside q in place was written\n";
        }
      }
    }
  }
  if (!failure.empty()) failure = to_string(case_) + "\n" + failure;
  return failure;
}

std::vector<std::vector<std::uint8_t>> RopeBatch::bytes() const {
  std::vector<std::vector<std::uint8_t>> all;
  // Inputs first; the first two are those that q in place may write.
  for (const GuardedTensor* tensor : {&qkv_,
                                      &q_,
                                      &k_,
                                      &v_,
                                      &cos_sin_,
                                      &positions_,
                                      &cu_seqlens_q_,
                                      &kv_lens_,
                                      &page_table_,
                                      &slot_mapping_,
                                      &k_scale_,
                                      &v_scale_,
                                      &q_scale_,
                                      &q_weight_,
                                      &k_weight_,
                                      &out_q_,
                                      &out_k_,
                                      &out_v_,
                                      &out_q_scale_,
                                      &cleared_}) {
    all.push_back(tensor->bytes());
  }
  if (args_.k_cache.defined()) all.push_back(pool_.bytes());
  return all;
}

}  // namespace hpcattn::testkit
