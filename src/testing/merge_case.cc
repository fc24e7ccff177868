// SPDX-License-Identifier: Apache-2.0
#include "src/testing/merge_case.h"

#include <cmath>
#include <limits>
#include <sstream>

#include "src/cpu/reference/numbers.h"
#include "src/testing/compare.h"
#include "src/testing/random.h"

namespace hpcattn::testkit {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

std::string to_string(const MergeCase& c) {
  std::ostringstream text;
  text << c.num_partials << " partials " << name(c.dtype) << " [" << c.sizes[0] << ", "
       << c.sizes[1] << ", " << c.sizes[2] << "] out " << name(c.out_dtype) << " row_gap "
       << c.row_gap << " lse " << c.with_lse << " deviation " << c.lse_deviation << " seed "
       << c.seed;
  return text.str();
}

MergeBatch::MergeBatch(const MergeCase& c) : description(c) {
  Rng rng(c.seed);
  const GuardSide side = rng.chance(0.5) ? GuardSide::kAfter : GuardSide::kBefore;
  for (std::int64_t s = 0; s < c.num_partials; ++s) {
    GuardedTensor partial(c.dtype, c.sizes, side, c.row_gap);
    GuardedTensor partial_lse(DType::kFloat32, {c.sizes[0], c.sizes[1]}, side, c.row_gap);
    partial.fill_normal(rng);
    partial_lse.fill_normal(rng, c.lse_deviation);
    for (std::int64_t token = 0; token < c.sizes[0]; ++token) {
      for (std::int64_t head = 0; head < c.sizes[1]; ++head) {
        if (!rng.chance(c.absent_share)) continue;
        reference::set_element(partial_lse, {token, head}, -kInfinity);
        for (std::int64_t d = 0; d < c.sizes[2]; ++d) {
          reference::set_element(partial, {token, head, d}, std::nan(""));
        }
      }
    }
    partials.push_back(std::move(partial));
    lses.push_back(std::move(partial_lse));
  }
  out = GuardedTensor(c.out_dtype, c.sizes, side, c.row_gap);
  if (c.with_lse) lse = GuardedTensor(DType::kFloat32, {c.sizes[0], c.sizes[1]}, side, c.row_gap);
}

MergeArgs MergeBatch::args() const {
  MergeArgs result;
  for (const GuardedTensor& partial : partials) result.partials.push_back(partial);
  for (const GuardedTensor& partial_lse : lses) result.lses.push_back(partial_lse);
  result.out = out;
  result.lse = lse;
  return result;
}

std::string check_merge(const Tensor& out, const Tensor& lse, const reference::MergeResult& want,
                        const std::string& label) {
  const double tiny = std::ldexp(1.0, -40);
  std::vector<double> bound;
  for (std::size_t i = 0; i < want.out.size(); ++i) {
    bound.push_back(rounded_bound(want.out[i], tiny * want.out_magnitude[i], out.dtype()));
  }
  std::string report = compare(out, want.out, bound, label + " out");
  if (!report.empty() || !lse.defined()) return report;
  bound.clear();
  for (double value : want.lse) {
    bound.push_back(rounded_bound(std::isfinite(value) ? value : 0.0, tiny, DType::kFloat32));
  }
  return compare(lse, want.lse, bound, label + " lse");
}

std::string run_and_check(const MergeCase& c, const Execution& execution) {
  return run_and_check_by(c, [&](const MergeArgs& args) {
    merge_partials(args, execution);
    return std::string();
  });
}

std::string run_and_check_by(const MergeCase& c,
                             const std::function<std::string(const MergeArgs&)>& call) {
  const MergeBatch batch(c);
  const MergeArgs args = batch.args();
  const reference::MergeResult want = reference::merge_partials(args);
  std::string report = call(args);
  if (report.empty()) report = check_merge(args.out, args.lse, want, to_string(c));
  if (report.empty() && !batch.out.surroundings_intact())
    report = to_string(c) + ": wrote around out";
  if (report.empty() && c.with_lse && !batch.lse.surroundings_intact()) {
    report = to_string(c) + ": wrote around lse";
  }
  return report;
}

}  // namespace hpcattn::testkit
