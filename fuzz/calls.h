// SPDX-License-Identifier: Apache-2.0
// Each makes the arguments of its operator, mostly right, and calls it.
#pragma once

#include "fuzz/workbench.h"
#include "hpcattn/execution.h"

namespace hpcattn::fuzz {

void call_paged_attention(Workbench& bench);
void call_packed_attention(Workbench& bench);
void call_merge_partials(Workbench& bench);
void call_store_kv(Workbench& bench);
void call_rope_norm_store_kv(Workbench& bench);
void call_make_plan(Workbench& bench);

/// Lengths of a batch: a few requests of a few tokens.
struct Batch {
  std::int64_t num_requests = 0;
  std::int64_t num_tokens = 0;  // of all requests and some padding
  std::vector<std::int64_t> ends_q = {0};
  std::vector<std::int64_t> kv_lens;
  std::vector<std::int64_t> ends_k = {0};
};
Batch make_batch(Bytes& bytes);

/// One thread mostly, or a few, or the caller's own pool.
Execution make_execution(Bytes& bytes);

/// A page table for the batch, and how many pages the pool needs. Entries past a request's length
/// are outside the pool.
struct Pages {
  std::int64_t page_size = 8;
  std::int64_t num_pages = 0;
  std::int64_t max_pages = 0;
  std::vector<std::int64_t> table;
};
Pages make_pages(Bytes& bytes, const Batch& batch);

}  // namespace hpcattn::fuzz
