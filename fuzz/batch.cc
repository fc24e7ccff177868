// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "fuzz/calls.h"

namespace hpcattn::fuzz {

Batch make_batch(Bytes& bytes) {
  Batch batch;
  batch.num_requests = bytes.integer(0, 3);
  for (std::int64_t r = 0; r < batch.num_requests; ++r) {
    const std::int64_t num_queries = bytes.integer(0, bytes.chance(32) ? 40 : 3);
    const std::int64_t kv_len = std::max<std::int64_t>(0, num_queries + bytes.integer(-1, 30));
    batch.ends_q.push_back(batch.ends_q.back() + num_queries);
    batch.ends_k.push_back(batch.ends_k.back() + kv_len);
    batch.kv_lens.push_back(kv_len);
  }
  batch.num_tokens = batch.ends_q.back() + bytes.integer(0, 2);
  return batch;
}

Execution make_execution(Bytes& bytes) {
  Execution execution;
  execution.num_threads = bytes.chance(8) ? 3 : 1;
  if (bytes.chance(8)) {
    execution.num_threads = 4;
    execution.parallel_for = [](int n, const std::function<void(int)>& body) {
      for (int i = n; i-- > 0;) body(i);
    };
  }
  execution.check_values = bytes.chance(64);
  return execution;
}

Pages make_pages(Bytes& bytes, const Batch& batch) {
  Pages pages;
  pages.page_size = bytes.pick<std::int64_t>({8, 16, 24, 32});
  if (bytes.chance(3)) pages.page_size = bytes.pick<std::int64_t>({0, 1, 7, 12, 9});
  const std::int64_t size = std::max<std::int64_t>(pages.page_size, 1);
  for (std::int64_t kv_len : batch.kv_lens) {
    pages.max_pages = std::max(pages.max_pages, (kv_len + size - 1) / size);
  }
  pages.max_pages += bytes.integer(0, 1);
  for (std::int64_t r = 0; r < batch.num_requests; ++r) {
    const std::int64_t used = (batch.kv_lens[static_cast<std::size_t>(r)] + size - 1) / size;
    for (std::int64_t i = 0; i < pages.max_pages; ++i) {
      const bool hole = i < used && bytes.chance(8);
      pages.table.push_back(i >= used ? 1'000'000'000 : hole ? -1 : pages.num_pages++);
    }
  }
  pages.num_pages += bytes.integer(0, 1);
  return pages;
}

}  // namespace hpcattn::fuzz
