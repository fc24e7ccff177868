// SPDX-License-Identifier: Apache-2.0
#include "src/testing/attention_subset.h"

#include <cstring>

#include "src/cpu/reference/numbers.h"
#include "src/testing/compare.h"

namespace hpcattn::testkit {
namespace {

/// The entries `which` of dim 0 of a tensor, contiguous.
GuardedTensor gather(const Tensor& from, const std::vector<std::int64_t>& which) {
  std::vector<std::int64_t> sizes(from.sizes().begin(), from.sizes().end());
  sizes[0] = static_cast<std::int64_t>(which.size());
  GuardedTensor result(from.dtype(), sizes);
  const auto width = static_cast<std::size_t>(size_bytes(from.dtype()));
  for (std::size_t i = 0; i < which.size(); ++i) {
    const Tensor source = from.select(0, which[i]);
    const Tensor target = result.tensor().select(0, static_cast<std::int64_t>(i));
    for_each_index(source, [&](const std::vector<std::int64_t>& index, std::int64_t) {
      std::memcpy(
          target.data_as<char>() + static_cast<std::size_t>(offset_of(target, index)) * width,
          source.data_as<char>() + static_cast<std::size_t>(offset_of(source, index)) * width,
          width);
    });
  }
  return result;
}

}  // namespace

AttentionSubset::AttentionSubset(const PagedAttentionArgs& whole,
                                 const std::vector<std::int64_t>& requests)
    : whole_(whole), args_(whole) {
  std::vector<std::int32_t> ends = {0};
  for (std::int64_t request : requests) {
    const std::int64_t end = reference::integer(whole.cu_seqlens_q, {request + 1});
    for (std::int64_t token = reference::integer(whole.cu_seqlens_q, {request}); token < end;
         ++token) {
      tokens_.push_back(token);
    }
    ends.push_back(static_cast<std::int32_t>(tokens_.size()));
  }
  q_ = gather(whole.q, tokens_);
  page_table_ = gather(whole.page_table, requests);
  kv_lens_ = gather(whole.kv_lens, requests);
  cu_seqlens_q_ = GuardedTensor::of_ints(ends);
  const std::vector<std::int64_t> sizes(q_.tensor().sizes().begin(), q_.tensor().sizes().end());
  out_ = GuardedTensor(whole.out.dtype(), sizes);
  args_.q = q_;
  args_.page_table = page_table_;
  args_.kv_lens = kv_lens_;
  args_.cu_seqlens_q = cu_seqlens_q_;
  args_.out = out_;
  args_.plan = {};
  if (whole.lse.defined()) {
    lse_ = GuardedTensor(DType::kFloat32, {sizes[0], sizes[1]});
    args_.lse = lse_;
  }
  if (whole.options.q_scale.defined() && whole.options.q_scale.rank() > 1) {
    const bool by_request = whole.options.q_scale.rank() == 3;
    q_scale_ = gather(whole.options.q_scale, by_request ? requests : tokens_);
    args_.options.q_scale = q_scale_;
  }
}

std::string AttentionSubset::compare_bits_with_whole(const std::string& label) const {
  std::string report = compare_bits(out_, gather(whole_.out, tokens_), label + " out");
  if (report.empty() && whole_.lse.defined()) {
    report = compare_bits(lse_, gather(whole_.lse, tokens_), label + " lse");
  }
  return report;
}

}  // namespace hpcattn::testkit
