// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "src/common/thread_pool.h"
#include "src/cpu/row_ops.h"

namespace hpcattn::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Elements that a thread merges in about the time that waking it takes.
constexpr std::int64_t kElementsOfTask = 1 << 14;

void* row_of(const Tensor& tensor, std::int64_t token, std::int64_t head) {
  return tensor.data_as<char>() +
         (token * tensor.stride(0) + head * tensor.stride(1)) * size_bytes(tensor.dtype());
}

double lse_of(const Tensor& lse, std::int64_t token, std::int64_t head) {
  return *static_cast<const float*>(row_of(lse, token, head));
}

/// Sums are kept in float64: the work is that of moving the bytes anyway, and the one rounding that
/// is left is the store's.
class RowMerger {
 public:
  explicit RowMerger(const MergeArgs& args)
      : args_(args),
        ops_(row_ops()),
        head_dim_(args.out.size(2)),
        weights_(args.partials.size()),
        row_(static_cast<std::size_t>(head_dim_)),
        sum_(static_cast<std::size_t>(head_dim_)) {}

  void merge(std::int64_t token, std::int64_t head) {
    const double lse = weigh(token, head);
    std::fill(sum_.begin(), sum_.end(), 0.0);
    for (std::size_t s = 0; s < weights_.size(); ++s) {
      if (weights_[s] == 0.0) continue;  // what it holds may be NaN
      const Tensor& partial = args_.partials[s];
      ops_.load(row_of(partial, token, head), partial.dtype(), head_dim_, row_.data());
      const double weight = weights_[s];
      for (std::size_t d = 0; d < sum_.size(); ++d) sum_[d] += weight * row_[d];
    }
    ops_.store(sum_.data(), 1.0, head_dim_, row_of(args_.out, token, head), args_.out.dtype());
    if (args_.lse.defined()) {
      *static_cast<float*>(row_of(args_.lse, token, head)) = static_cast<float>(lse);
    }
  }

 private:
  /// Fills weights_ and returns the merged LSE. A NaN among the LSEs is passed on to both.
  double weigh(std::int64_t token, std::int64_t head) {
    double largest = -kInfinity;
    bool any = false;
    for (std::size_t s = 0; s < weights_.size(); ++s) {
      weights_[s] = lse_of(args_.lses[s], token, head);
      any |= weights_[s] != -kInfinity;
      largest = std::max(largest, weights_[s]);
    }
    double sum = 0.0;
    for (double& weight : weights_) {
      weight = weight == -kInfinity ? 0.0 : std::exp(weight - largest);
      sum += weight;
    }
    if (!any) return -kInfinity;
    for (double& weight : weights_) weight /= sum;
    return largest + std::log(sum);
  }

  const MergeArgs& args_;
  const RowOps& ops_;
  std::int64_t head_dim_;
  std::vector<double> weights_;
  std::vector<double> row_;
  std::vector<double> sum_;
};

}  // namespace

void merge_partials(const MergeArgs& args, const Execution& execution) {
  const std::int64_t num_tokens = args.out.size(0);
  const std::int64_t num_heads = args.out.size(1);
  const auto num_partials = static_cast<std::int64_t>(args.partials.size());
  const std::int64_t rows = num_tokens * num_heads;
  const std::int64_t elements = rows * args.out.size(2) * num_partials;
  const std::int64_t num_tasks =
      std::clamp<std::int64_t>(elements / kElementsOfTask, 1, 4L * num_threads(execution));
  run_parallel(execution, static_cast<int>(num_tasks), [&](int task) {
    RowMerger merger(args);
    for (std::int64_t row = rows * task / num_tasks; row < rows * (task + 1) / num_tasks; ++row) {
      merger.merge(row / num_heads, row % num_heads);
    }
  });
}

}  // namespace hpcattn::cpu
