// SPDX-License-Identifier: Apache-2.0
// Where each token stands in its request and where its K and V go.
#include <array>

#include "src/common/check.h"
#include "src/ops/check_tensor.h"
#include "src/ops/rope_checks.h"
#include "src/ops/store_checks.h"

namespace hpcattn::ops {
namespace {

constexpr std::string_view kOp = kRopeOp;

void check_lengths(const RopeNormStoreKvArgs& args, bool through_pages) {
  for (std::int64_t request = 0; request < args.kv_lens.size(0); ++request) {
    const std::int64_t kv_len = index_at(args.kv_lens, request);
    const std::int64_t num_new =
        index_at(args.cu_seqlens_q, request + 1) - index_at(args.cu_seqlens_q, request);
    check(kv_len >= 0, kOp, ": kv_lens[", request, "] is ", kv_len, ", expected 0 or more.");
    check(kv_len >= num_new, kOp, ": kv_lens[", request, "] is ", kv_len, ", below the request's ",
          num_new, " new tokens, which it counts too.");
    if (!through_pages) continue;
    const std::int64_t page_size = args.k_cache.size(1);
    const std::int64_t max_pages = args.page_table.size(1);
    check(kv_len <= max_pages * page_size, kOp, ": kv_lens[", request, "] is ", kv_len,
          ", over the ", max_pages * page_size, " tokens that a row of page_table holds (",
          max_pages, " pages of ", page_size, ").");
  }
}

void check_position(std::string_view arg, std::int64_t token, std::int64_t position,
                    const RopeNormStoreKvArgs& args) {
  const std::int64_t max_position = args.cos_sin.size(0);
  if (position >= 0 && position < max_position) return;
  throw InvalidArgument(message(kOp, ": ", arg, " gives token ", token, " position ", position,
                                ", expected 0 or more and below cos_sin's ", max_position,
                                " rows."));
}

std::vector<std::int64_t> given_positions(const RopeNormStoreKvArgs& args, std::int64_t num_live) {
  std::vector<std::int64_t> positions;
  const bool mrope = args.positions.rank() == 2;
  positions.reserve(static_cast<std::size_t>(num_live * (mrope ? 3 : 1)));
  for (std::int64_t axis = 0; axis < (mrope ? 3 : 1); ++axis) {
    for (std::int64_t token = 0; token < num_live; ++token) {
      const std::int64_t position =
          mrope ? index_at(args.positions, axis, token) : index_at(args.positions, token);
      check_position("positions", token, position, args);
      positions.push_back(position);
    }
  }
  return positions;
}

std::vector<std::int64_t> positions_of_lengths(const RopeNormStoreKvArgs& args,
                                               std::int64_t num_live) {
  std::vector<std::int64_t> positions;
  positions.reserve(static_cast<std::size_t>(num_live));
  for (std::int64_t request = 0; request < args.kv_lens.size(0); ++request) {
    const std::int64_t begin = index_at(args.cu_seqlens_q, request);
    const std::int64_t end = index_at(args.cu_seqlens_q, request + 1);
    const std::int64_t past = index_at(args.kv_lens, request) - (end - begin);
    if (end > begin) check_position("kv_lens", end - 1, past + end - begin - 1, args);
    for (std::int64_t token = begin; token < end; ++token)
      positions.push_back(past + token - begin);
  }
  return positions;
}

}  // namespace

cpu::TokenPlaces resolve_rope_tokens(const RopeNormStoreKvArgs& args) {
  cpu::TokenPlaces places;
  places.num_live = args.q.size(0);
  const bool has_cache = args.k_cache.defined();
  const bool through_pages = has_cache && !args.slot_mapping.defined();
  if (args.cu_seqlens_q.defined()) {
    check_cu_seqlens(kOp, "cu_seqlens_q", args.cu_seqlens_q, args.q.size(0), "q's tokens");
    places.num_live = index_at(args.cu_seqlens_q, args.cu_seqlens_q.size(0) - 1);
  }
  if (args.kv_lens.defined()) check_lengths(args, through_pages);
  places.positions = args.positions.defined() ? given_positions(args, places.num_live)
                                              : positions_of_lengths(args, places.num_live);
  if (through_pages) {
    places.slots = slots_of_pages(kOp, args.page_table, args.cu_seqlens_q, args.kv_lens,
                                  places.num_live, args.k_cache);
  } else if (has_cache) {
    places.slots = slots_of_mapping(kOp, args.slot_mapping, places.num_live, args.k_cache);
  }
  return places;
}

}  // namespace hpcattn::ops
