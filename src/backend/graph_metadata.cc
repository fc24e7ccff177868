// SPDX-License-Identifier: Apache-2.0
// HpcAttnMetadataBuilder's metadata for captured graphs: memory of the builder's own, filled anew
// before each replay.
#include <algorithm>

#include "hpcattn/backend/metadata_builder.h"
#include "src/backend/memory.h"
#include "src/backend/step_copy.h"
#include "src/common/check.h"

namespace hpcattn {
namespace {

std::int64_t num_slots(const CommonAttnMetadata& common) {
  return common.slot_mapping.defined() ? common.slot_mapping.size(0) : 0;
}

}  // namespace

HpcAttnMetadata HpcAttnMetadataBuilder::build_for_graph_capture(const CommonAttnMetadata& common) {
  Lengths lengths = check_common(common);
  GraphBuffers graph = make_graph(common);
  HpcAttnMetadata metadata = fill_graph(graph, common, std::move(lengths));
  graphs_.push_back(std::move(graph));
  return metadata;
}

void HpcAttnMetadataBuilder::update_in_place(HpcAttnMetadata& metadata,
                                             const CommonAttnMetadata& common) {
  Lengths lengths = check_common(common);
  const auto graph = std::find_if(graphs_.begin(), graphs_.end(), [&](const GraphBuffers& buffers) {
    return metadata.cu_seqlens_q.defined() &&
           buffers.cu_seqlens_q.data() == metadata.cu_seqlens_q.data();
  });
  check(graph != graphs_.end(),
        "update_in_place: metadata is not one that this builder's build_for_graph_capture made.");
  const std::int64_t num_requests = graph->kv_lens.size(0);
  check(common.num_requests <= num_requests, "update_in_place: num_requests is ",
        common.num_requests, ", over the ", num_requests,
        " that the graph was captured for. Replay a larger graph.");
  check(common.num_actual_tokens <= graph->num_tokens, "update_in_place: num_actual_tokens is ",
        common.num_actual_tokens, ", over the ", graph->num_tokens,
        " that the graph was captured for. Replay a larger graph.");
  check(!has_cache() || num_slots(common) <= graph->slot_mapping.size(0),
        "update_in_place: slot_mapping has ", num_slots(common), " entries, over the ",
        has_cache() ? graph->slot_mapping.size(0) : 0,
        " that the graph was captured for. Replay a larger graph.");
  const bool causal = is_causal(common);
  check(causal == graph->causal, "update_in_place: the step is ", causal ? "" : "not ",
        "causal, unlike the captured one.");
  metadata = fill_graph(*graph, common, std::move(lengths));
}

HpcAttnMetadataBuilder::GraphBuffers HpcAttnMetadataBuilder::make_graph(
    const CommonAttnMetadata& common) const {
  const std::int64_t requests = common.num_requests;
  MemoryPlan room;
  const std::size_t offsets = room.add(DType::kInt32, {requests + 1});
  const std::size_t prefill = room.add(DType::kInt32, {requests + 1});
  const std::size_t kv_lens = room.add(DType::kInt32, {requests});
  const std::size_t plan = room.add(DType::kInt32, {plan_.size(0)});
  const std::int64_t columns = has_cache() ? max_pages() : 0;
  const std::size_t pages = room.add(DType::kInt32, {requests, columns});
  const std::size_t slots = room.add(DType::kInt64, {num_slots(common)});

  GraphBuffers graph;
  const Device device = options_.device;
  graph.memory = allocate(device, room.bytes());
  const auto at = [&](std::size_t place, DType dtype, std::initializer_list<std::int64_t> sizes) {
    return tensor_at(graph.memory, place, dtype, sizes, device);
  };
  graph.cu_seqlens_q = at(offsets, DType::kInt32, {requests + 1});
  graph.cu_seqlens_prefill = at(prefill, DType::kInt32, {requests + 1});
  graph.kv_lens = at(kv_lens, DType::kInt32, {requests});
  graph.plan = at(plan, DType::kInt32, {plan_.size(0)});
  if (has_cache()) {
    graph.page_table = at(pages, DType::kInt32, {requests, columns});
    graph.slot_mapping = at(slots, DType::kInt64, {num_slots(common)});
  }
  graph.num_tokens = common.num_actual_tokens;
  graph.causal = is_causal(common);
  return graph;
}

HpcAttnMetadata HpcAttnMetadataBuilder::fill_graph(const GraphBuffers& graph,
                                                   const CommonAttnMetadata& common,
                                                   Lengths lengths) const {
  CommonAttnMetadata captured = common;
  captured.num_requests = graph.kv_lens.size(0);
  captured.num_actual_tokens = graph.num_tokens;
  captured.cu_seqlens_q = graph.cu_seqlens_q;
  captured.kv_lens = graph.kv_lens;
  captured.page_table = graph.page_table;
  captured.slot_mapping = graph.slot_mapping;
  // What the step leaves free are requests without tokens.
  lengths.offsets.resize(std::size_t(captured.num_requests + 1), lengths.offsets.back());
  if (!lengths.kv_lens.empty() || common.num_requests == 0) {
    lengths.kv_lens.resize(std::size_t(captured.num_requests), 0);
  }
  HpcAttnMetadata metadata = describe(captured, lengths, graph.cu_seqlens_prefill);
  copy_step(common, metadata, options_.execution);
  make_plan_in(metadata, graph.plan);
  return metadata;
}

}  // namespace hpcattn
