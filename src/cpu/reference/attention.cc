// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/cpu/reference/numbers.h"

namespace hpcattn::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// What both forms have in common.
struct Problem {
  Tensor q;
  std::int64_t num_kv_heads;
  AttentionOptions options;
};

/// The KV tokens of one request, decoded: keys[j][kv_head][d].
struct Request {
  std::int64_t index = 0;
  std::int64_t first_token = 0;
  std::int64_t num_queries = 0;
  std::int64_t num_keys = 0;
  std::vector<double> keys;
  std::vector<double> values;
  std::vector<bool> exists;
};

double scale_of_head(const Tensor& scale, std::int64_t head) {
  if (!scale.defined()) return 1.0;
  return element(scale, {scale.size(0) == 1 ? 0 : head});
}

double scale_of_row(const Tensor& scale, const Request& request, std::int64_t i,
                    std::int64_t head) {
  if (!scale.defined()) return 1.0;
  if (scale.rank() == 3) return element(scale, {request.index, head, i});
  return scale.rank() == 1 ? element(scale, {0}) : element(scale, {request.first_token + i, head});
}

bool is_visible(const AttentionOptions& options, std::int64_t position, std::int64_t j) {
  const std::int64_t ahead = j - position;
  if (options.causal && ahead > 0) return false;
  // Written without position +- window, which a window of INT64_MAX would overflow.
  if (options.window && -ahead >= *options.window) return false;
  if (options.window && !options.causal && ahead >= *options.window) return false;
  return true;
}

void attend_row(const Problem& problem, const Request& request, std::int64_t i, std::int64_t head,
                AttentionResult& result) {
  const AttentionOptions& options = problem.options;
  const std::int64_t head_dim = problem.q.size(2);
  const std::int64_t num_q_heads = problem.q.size(1);
  const std::int64_t kv_head = head / (num_q_heads / problem.num_kv_heads);
  const std::int64_t token = request.first_token + i;
  const std::int64_t position = request.num_keys - request.num_queries + i;
  const double factor = options.scale * scale_of_row(options.q_scale, request, i, head) *
                        scale_of_head(options.k_scale, kv_head);

  std::vector<double> q(static_cast<std::size_t>(head_dim));
  for (std::int64_t d = 0; d < head_dim; ++d) {
    q[static_cast<std::size_t>(d)] = element(problem.q, {token, head, d});
  }

  std::vector<double> scores;
  std::vector<std::int64_t> seen;
  double score_magnitude = 0.0;
  for (std::int64_t j = 0; j < request.num_keys; ++j) {
    if (!request.exists[static_cast<std::size_t>(j)] || !is_visible(options, position, j)) continue;
    const auto at = static_cast<std::size_t>((j * problem.num_kv_heads + kv_head) * head_dim);
    double dot = 0.0;
    double magnitude = 0.0;
    for (std::size_t d = 0; d < q.size(); ++d) {
      dot += q[d] * request.keys[at + d];
      magnitude += std::fabs(q[d] * request.keys[at + d]);
    }
    double score = factor * dot;
    magnitude *= std::fabs(factor);
    if (options.softcap > 0.0) {
      score = options.softcap * std::tanh(score / options.softcap);
      magnitude += options.softcap;
    }
    if (options.alibi_slopes.defined()) {
      const double penalty = element(options.alibi_slopes, {head}) *
                             std::fabs(static_cast<double>(position) - static_cast<double>(j));
      score -= penalty;
      magnitude += std::fabs(penalty);
    }
    seen.push_back(j);
    scores.push_back(score);
    score_magnitude = std::max(score_magnitude, magnitude);
  }

  const bool has_sink = options.sinks.defined();
  const double sink = has_sink ? element(options.sinks, {head}) : -kInfinity;
  double largest_score = sink;
  for (double score : scores) largest_score = std::max(largest_score, score);

  const auto row = static_cast<std::size_t>(token * num_q_heads + head);
  result.score_magnitude[row] = std::max(score_magnitude, has_sink ? std::fabs(sink) : 0.0);
  result.num_visible[row] = static_cast<std::int64_t>(seen.size());
  if (seen.empty()) {
    result.lse[row] = sink;  // -inf without one; out stays 0
    return;
  }
  double sum = has_sink ? std::exp(sink - largest_score) : 0.0;
  std::vector<double> weights;
  for (double score : scores) weights.push_back(std::exp(score - largest_score));
  for (double weight : weights) sum += weight;
  result.lse[row] = largest_score + std::log(sum);

  const double v_scale = scale_of_head(options.v_scale, kv_head);
  for (std::int64_t d = 0; d < head_dim; ++d) {
    double out = 0.0;
    double magnitude = 0.0;
    double values = 0.0;
    for (std::size_t s = 0; s < seen.size(); ++s) {
      const double p = weights[s] / sum;
      const auto at =
          static_cast<std::size_t>((seen[s] * problem.num_kv_heads + kv_head) * head_dim + d);
      out += p * request.values[at];
      magnitude += p * std::fabs(request.values[at]);
      values += std::fabs(request.values[at]);
    }
    const std::size_t place = row * q.size() + static_cast<std::size_t>(d);
    result.out[place] = v_scale * out;
    result.out_magnitude[place] = std::fabs(v_scale) * magnitude;
    result.value_magnitude[place] = std::fabs(v_scale) * values;
  }
}

AttentionResult empty_result(const Tensor& q) {
  const auto rows = static_cast<std::size_t>(q.size(0) * q.size(1));
  const auto elements = rows * static_cast<std::size_t>(q.size(2));
  AttentionResult result;
  result.out.assign(elements, 0.0);
  result.out_magnitude.assign(elements, 0.0);
  result.value_magnitude.assign(elements, 0.0);
  result.lse.assign(rows, -kInfinity);
  result.score_magnitude.assign(rows, 0.0);
  result.num_visible.assign(rows, 0);
  return result;
}

void attend(const Problem& problem, const Request& request, AttentionResult& result) {
  for (std::int64_t i = 0; i < request.num_queries; ++i) {
    for (std::int64_t head = 0; head < problem.q.size(1); ++head) {
      attend_row(problem, request, i, head, result);
    }
  }
}

}  // namespace

AttentionResult attention(const PagedAttentionArgs& args) {
  const Problem problem{args.q, args.k_cache.size(2), args.options};
  const std::int64_t page_size = args.k_cache.size(1);
  const std::int64_t head_dim = args.q.size(2);
  AttentionResult result = empty_result(args.q);
  for (std::int64_t r = 0; r < args.kv_lens.size(0); ++r) {
    Request request;
    request.index = r;
    request.first_token = integer(args.cu_seqlens_q, {r});
    request.num_queries = integer(args.cu_seqlens_q, {r + 1}) - request.first_token;
    request.num_keys = integer(args.kv_lens, {r});
    for (std::int64_t j = 0; j < request.num_keys; ++j) {
      const std::int64_t page = integer(args.page_table, {r, j / page_size});
      request.exists.push_back(page != -1);
      for (std::int64_t head = 0; head < problem.num_kv_heads; ++head) {
        for (std::int64_t d = 0; d < head_dim; ++d) {
          const bool exists = page != -1;
          request.keys.push_back(exists ? element(args.k_cache, {page, j % page_size, head, d})
                                        : 0.0);
          request.values.push_back(exists ? element(args.v_cache, {page, j % page_size, head, d})
                                          : 0.0);
        }
      }
    }
    attend(problem, request, result);
  }
  return result;
}

AttentionResult attention(const PackedAttentionArgs& args) {
  const Problem problem{args.q, args.k.size(1), args.options};
  AttentionResult result = empty_result(args.q);
  for (std::int64_t r = 0; r + 1 < args.cu_seqlens_k.size(0); ++r) {
    Request request;
    request.index = r;
    request.first_token = integer(args.cu_seqlens_q, {r});
    request.num_queries = integer(args.cu_seqlens_q, {r + 1}) - request.first_token;
    const std::int64_t first_key = integer(args.cu_seqlens_k, {r});
    request.num_keys = integer(args.cu_seqlens_k, {r + 1}) - first_key;
    request.exists.assign(static_cast<std::size_t>(request.num_keys), true);
    for (std::int64_t j = first_key; j < first_key + request.num_keys; ++j) {
      for (std::int64_t head = 0; head < problem.num_kv_heads; ++head) {
        for (std::int64_t d = 0; d < args.q.size(2); ++d) {
          request.keys.push_back(element(args.k, {j, head, d}));
          request.values.push_back(element(args.v, {j, head, d}));
        }
      }
    }
    attend(problem, request, result);
  }
  return result;
}

}  // namespace hpcattn::reference
