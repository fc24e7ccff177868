// SPDX-License-Identifier: Apache-2.0
// HpcAttnMetadataBuilder's metadata for captured graphs: memory of the builder's own, filled anew
// before each replay.
#include <algorithm>

#include "hpcattn/backend/metadata_builder.h"
#include "src/common/check.h"
#include "src/ops/check_tensor.h"

namespace hpcattn {
namespace {

constexpr std::int32_t kNoPage = -1;
constexpr std::int64_t kNoSlot = -1;

Tensor vector_view(std::vector<std::int32_t>& values, std::int64_t length) {
  return Tensor::contiguous(values.data(), DType::kInt32, {length});
}

}  // namespace

HpcAttnMetadata HpcAttnMetadataBuilder::build_for_graph_capture(const CommonAttnMetadata& common) {
  check_common(common);
  const auto num_requests = std::size_t(common.num_requests);
  GraphBuffers graph;
  graph.cu_seqlens_q.resize(num_requests + 1);
  graph.cu_seqlens_prefill.resize(num_requests + 1);
  graph.kv_lens.resize(num_requests);
  if (has_cache()) {
    graph.page_table.resize(num_requests * std::size_t(max_pages()));
    const std::int64_t slots = common.slot_mapping.defined() ? common.slot_mapping.size(0) : 0;
    graph.slot_mapping.resize(std::size_t(slots));
  }
  graph.plan.resize(plan_.size());
  graph.causal = describe(common, cu_seqlens_prefill_.data()).causal;
  graph.num_tokens = common.num_actual_tokens;

  graphs_.push_back(std::move(graph));
  HpcAttnMetadata metadata;
  fill_graph(graphs_.back(), metadata, common);
  return metadata;
}

void HpcAttnMetadataBuilder::update_in_place(HpcAttnMetadata& metadata,
                                             const CommonAttnMetadata& common) {
  check_common(common);
  const auto graph = std::find_if(graphs_.begin(), graphs_.end(), [&](const GraphBuffers& buffers) {
    return metadata.cu_seqlens_q.defined() &&
           buffers.cu_seqlens_q.data() == metadata.cu_seqlens_q.data();
  });
  check(graph != graphs_.end(),
        "update_in_place: metadata is not one that this builder's build_for_graph_capture made.");
  const auto num_requests = std::int64_t(graph->kv_lens.size());
  check(common.num_requests <= num_requests, "update_in_place: num_requests is ",
        common.num_requests, ", over the ", num_requests,
        " that the graph was captured for. Replay a larger graph.");
  check(common.num_actual_tokens <= graph->num_tokens, "update_in_place: num_actual_tokens is ",
        common.num_actual_tokens, ", over the ", graph->num_tokens,
        " that the graph was captured for. Replay a larger graph.");
  const std::int64_t slots = common.slot_mapping.defined() ? common.slot_mapping.size(0) : 0;
  check(!has_cache() || slots <= std::int64_t(graph->slot_mapping.size()),
        "update_in_place: slot_mapping has ", slots, " entries, over the ",
        graph->slot_mapping.size(), " that the graph was captured for. Replay a larger graph.");
  const bool causal = common.causal && options_.attention_type == AttentionType::kDecoder;
  check(causal == graph->causal, "update_in_place: the step is ", causal ? "" : "not ",
        "causal, unlike the captured one.");
  fill_graph(*graph, metadata, common);
}

void HpcAttnMetadataBuilder::fill_graph(GraphBuffers& graph, HpcAttnMetadata& metadata,
                                        const CommonAttnMetadata& common) {
  const auto captured_requests = std::int64_t(graph.kv_lens.size());
  const std::int64_t last = ops::index_at(common.cu_seqlens_q, common.num_requests);
  for (std::int64_t i = 0; i <= captured_requests; ++i) {
    const bool live = i < common.num_requests;
    const std::int64_t offset = live ? ops::index_at(common.cu_seqlens_q, i) : last;
    graph.cu_seqlens_q[std::size_t(i)] = static_cast<std::int32_t>(offset);
    if (i == captured_requests) break;
    const std::int64_t kv_len = live ? ops::index_at(common.kv_lens, i) : 0;
    graph.kv_lens[std::size_t(i)] = static_cast<std::int32_t>(kv_len);
  }

  CommonAttnMetadata captured = common;
  captured.num_requests = captured_requests;
  captured.num_actual_tokens = graph.num_tokens;
  captured.cu_seqlens_q = vector_view(graph.cu_seqlens_q, captured_requests + 1);
  captured.kv_lens = vector_view(graph.kv_lens, captured_requests);
  if (has_cache()) {
    std::fill(graph.page_table.begin(), graph.page_table.end(), kNoPage);
    const std::int64_t columns = std::min(max_pages(), common.page_table.size(1));
    for (std::int64_t i = 0; i < common.num_requests; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        graph.page_table[std::size_t(i * max_pages() + j)] =
            static_cast<std::int32_t>(ops::index_at(common.page_table, i, j));
      }
    }
    captured.page_table = Tensor::contiguous(graph.page_table.data(), DType::kInt32,
                                             {captured_requests, max_pages()});

    std::fill(graph.slot_mapping.begin(), graph.slot_mapping.end(), kNoSlot);
    const std::int64_t slots = common.slot_mapping.defined() ? common.slot_mapping.size(0) : 0;
    for (std::int64_t i = 0; i < slots; ++i) {
      graph.slot_mapping[std::size_t(i)] = ops::index_at(common.slot_mapping, i);
    }
    captured.slot_mapping = Tensor::contiguous(graph.slot_mapping.data(), DType::kInt64,
                                               {std::int64_t(graph.slot_mapping.size())});
  }
  metadata = describe(captured, graph.cu_seqlens_prefill.data());
  make_plan_in(metadata, graph.plan);
}

}  // namespace hpcattn
