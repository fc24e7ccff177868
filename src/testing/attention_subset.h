// SPDX-License-Identifier: Apache-2.0
// Some requests of a batch, in any order, as a batch of their own over the same pool.
#pragma once

#include <string>
#include <vector>

#include "hpcattn/attention.h"
#include "src/testing/guarded_tensor.h"

namespace hpcattn::testkit {

class AttentionSubset {
 public:
  /// `whole` must outlive this: K and V, and the options that are not per token, stay where they
  /// are.
  AttentionSubset(const PagedAttentionArgs& whole, const std::vector<std::int64_t>& requests);

  const PagedAttentionArgs& args() const { return args_; }

  /// "" when the outputs of these requests have the same bits here and in the whole batch.
  std::string compare_bits_with_whole(const std::string& label) const;

 private:
  PagedAttentionArgs whole_;
  PagedAttentionArgs args_;
  std::vector<std::int64_t> tokens_;  // of the whole batch, in this one's order
  GuardedTensor q_, q_scale_, page_table_, kv_lens_, cu_seqlens_q_, out_, lse_;
};

}  // namespace hpcattn::testkit
