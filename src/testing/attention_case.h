// SPDX-License-Identifier: Apache-2.0
// A batch for attention, built from a description and a seed: the same numbers once in pages and
// once packed. All that a kernel must not use is poison: dead slots of the pool are NaN, page ids
// past a request's length are outside the pool, outputs start as NaN, and all memory has guard
// pages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hpcattn/attention.h"
#include "src/testing/guarded_tensor.h"

namespace hpcattn::testkit {

/// How K and V lie in memory behind [num_pages, page_size, num_kv_heads, head_dim].
enum class KvLayout : std::uint8_t {
  kNhd,          // [page, place, head, dim], K and V in tensors of their own
  kHnd,          // [page, head, place, dim]
  kHalves,       // one tensor [page, 2, place, head, dim]
  kInterleaved,  // one tensor [page, place, head, 2 * dim]
  kMixed,        // K as kNhd, V as kHnd with gaps between its pages
};

std::string name(KvLayout layout);

/// kEach: one a head, for q one a token and head.
enum class Scales : std::uint8_t { kNone, kOne, kEach, kByRequest };  // the last: of q alone

struct AttentionCase {
  std::string name;
  std::uint64_t seed = 1;

  std::vector<std::int32_t> q_lens;
  std::vector<std::int32_t> kv_lens;  // as many as q_lens
  std::int64_t num_q_heads = 4;
  std::int64_t num_kv_heads = 2;
  std::int64_t head_dim = 64;
  std::int64_t page_size = 16;
  KvLayout layout = KvLayout::kNhd;

  DType q_dtype = DType::kFloat32;
  DType kv_dtype = DType::kFloat32;
  DType out_dtype = DType::kFloat32;

  double scale = 0.0;  // 0: 1/sqrt(head_dim)
  bool causal = true;
  std::optional<std::int64_t> window;
  double softcap = 0.0;
  bool alibi = false;
  std::optional<DType> sinks;
  Scales q_scale = Scales::kNone;
  Scales k_scale = Scales::kNone;
  Scales v_scale = Scales::kNone;
  bool out_scale = false;

  bool lse = true;
  std::int64_t padding_tokens = 2;  // rows of q and out past the last request
  std::int64_t row_gap = 0;         // elements between heads of q and out
  double hole_share = 0.0;          // of whole pages before a request's length that are -1
  double deviation = 1.0;           // of q, k and v
};

/// All that a failure needs in order to be repeated.
std::string to_string(const AttentionCase& c);

class AttentionBatch {
 public:
  explicit AttentionBatch(const AttentionCase& c);

  const AttentionCase& description() const { return case_; }

  /// Arguments that point into this batch. Both forms write the same out and lse.
  PagedAttentionArgs paged() const;
  PackedAttentionArgs packed() const;

  const GuardedTensor& out() const { return out_; }
  const GuardedTensor& lse() const { return lse_; }

  /// Makes the outputs "unwritten" again.
  void reset_outputs();

  /// Gives every page another place in the pool; what is computed stays the same.
  void rename_pages(std::uint64_t seed);

  /// "" while nothing but the elements of out and lse was written since rename_pages().
  std::string check_surroundings() const;

 private:
  void fill_inputs(Rng& rng);
  void make_options(Rng& rng);
  void build_pool(Rng& rng);
  AttentionOptions options() const;
  std::size_t hash_of_inputs() const;

  AttentionCase case_;
  std::int64_t num_tokens_ = 0;
  std::int64_t num_kv_tokens_ = 0;
  std::int64_t max_pages_ = 0;
  GuardedTensor q_, k_, v_, cu_seqlens_q_, cu_seqlens_k_, kv_lens_, page_table_, out_, lse_;
  GuardedTensor alibi_, sinks_, q_scale_, k_scale_, v_scale_, out_scale_;
  GuardedBuffer k_pool_, v_pool_;
  Tensor k_cache_, v_cache_;
  std::vector<bool> hole_;  // [request * max_pages + i]
  std::size_t hash_ = 0;    // of the inputs as they were built
};

}  // namespace hpcattn::testkit
