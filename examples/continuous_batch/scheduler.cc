// SPDX-License-Identifier: Apache-2.0
#include "scheduler.h"

#include <algorithm>
#include <cstdio>

namespace example {

Batch Scheduler::next_batch() {
  while (!waiting_.empty() && running_.size() < kMaxRequests) {
    Request& request = waiting_.front();
    const int needed = PagePool::pages_for(request.max_len);
    if (needed > pool_.num_free()) break;  // first come, first served
    request.pages = pool_.take(needed);
    std::printf("  admit request %d: prompt of %zu, %d pages, %d left\n", request.id,
                request.prompt_len, needed, pool_.num_free());
    running_.push_back(std::move(request));
    waiting_.pop_front();
  }

  Batch batch;
  batch.cu_seqlens_q.push_back(0);
  for (const Request& request : running_) {
    batch.max_pages = std::max(batch.max_pages, int(request.pages.size()));
  }
  for (std::size_t i = 0; i < running_.size(); ++i) {
    const Request& request = running_[i];
    // One token is left for each request that follows, so that a long prompt does not stall
    // decodes.
    const std::size_t budget = kTokensOfAStep - batch.tokens.size() - (running_.size() - i - 1);
    const std::size_t count = std::min(budget, request.tokens.size() - request.num_computed);
    const auto first = request.tokens.begin() + std::ptrdiff_t(request.num_computed);
    batch.tokens.insert(batch.tokens.end(), first, first + std::ptrdiff_t(count));
    batch.cu_seqlens_q.push_back(std::int32_t(batch.tokens.size()));
    batch.kv_lens.push_back(std::int32_t(request.num_computed + count));
    batch.page_table.insert(batch.page_table.end(), request.pages.begin(), request.pages.end());
    batch.page_table.resize(batch.kv_lens.size() * std::size_t(batch.max_pages), -1);
  }
  return batch;
}

void Scheduler::finish_step(const Batch& batch, const std::vector<float>& logits) {
  const std::size_t vocab = logits.size() / running_.size();
  std::vector<Request> still_running;
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Request& request = running_[i];
    request.num_computed = std::size_t(batch.kv_lens[i]);
    if (request.num_computed == request.tokens.size()) {  // else: more of the prompt is to come
      const auto row = logits.begin() + std::ptrdiff_t(i * vocab);
      request.logits.emplace_back(row, row + std::ptrdiff_t(vocab));
      request.tokens.push_back(int(std::max_element(row, row + std::ptrdiff_t(vocab)) - row));
    }
    if (request.tokens.size() == request.max_len) {
      std::printf("  finish request %d: %zu tokens generated, %zu pages given back\n", request.id,
                  request.max_len - request.prompt_len, request.pages.size());
      pool_.give_back(request.pages);
      finished_.push_back(std::move(request));
    } else {
      still_running.push_back(std::move(request));
    }
  }
  running_ = std::move(still_running);
}

}  // namespace example
