// SPDX-License-Identifier: Apache-2.0
// Continuous batching: who takes part in the next step, and with which tokens. Prompts are computed
// in chunks beside the decodes of others; a finished request's pages go to the next that waits.
#pragma once

#include <deque>
#include <vector>

#include "page_pool.h"

namespace example {

struct Request {
  int id = 0;
  std::vector<int> tokens;       // the prompt, then what was generated
  std::size_t prompt_len = 0;    // tokens
  std::size_t max_len = 0;       // prompt and generated tokens
  std::size_t num_computed = 0;  // tokens whose K and V lie in the pages
  std::vector<std::int32_t> pages;
  std::vector<std::vector<float>> logits;  // one row a generated token
};

/// One step's batch, as hpcattn takes it: requests one after the other, no padding.
struct Batch {
  std::vector<int> tokens;
  std::vector<std::int32_t> cu_seqlens_q;  // [num_requests + 1]
  std::vector<std::int32_t> kv_lens;       // [num_requests], this step's tokens included
  std::vector<std::int32_t> page_table;    // [num_requests, max_pages]; -1 past a request's pages
  int max_pages = 0;
};

class Scheduler {
 public:
  static constexpr std::size_t kMaxRequests = 4;     // in a step
  static constexpr std::size_t kTokensOfAStep = 32;  // query tokens: prompts are cut to fit

  Scheduler(PagePool& pool, std::deque<Request> requests)
      : pool_(pool), waiting_(std::move(requests)) {}

  bool done() const { return waiting_.empty() && running_.empty(); }
  const std::vector<Request>& finished() const { return finished_; }

  /// Admits waiting requests while pages last, then cuts the step's batch.
  Batch next_batch();

  /// `logits` [num_requests, vocab] of each request's last token of the batch.
  void finish_step(const Batch& batch, const std::vector<float>& logits);

 private:
  PagePool& pool_;
  std::deque<Request> waiting_;
  std::vector<Request> running_;
  std::vector<Request> finished_;
};

}  // namespace example
