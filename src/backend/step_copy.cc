// SPDX-License-Identifier: Apache-2.0
#include "src/backend/step_copy.h"

#include <algorithm>

#include "kernels/step/word.h"
#include "src/cuda/step.h"
#include "src/cuda/views.h"

namespace hpcattn {
namespace {

StepParams params_of(const CommonAttnMetadata& common, const HpcAttnMetadata& metadata) {
  StepParams p;
  p.cu_seqlens_q = cuda::index_view(common.cu_seqlens_q);
  p.num_requests = common.num_requests;
  p.num_decodes = metadata.num_decodes;
  if (metadata.cu_seqlens_prefill.defined()) {
    p.to_prefill = metadata.cu_seqlens_prefill.data_as<std::int32_t>();
    p.prefill_offsets = metadata.cu_seqlens_prefill.size(0);
  }
  if (metadata.cu_seqlens_q.data() == common.cu_seqlens_q.data()) return p;

  p.to_cu_seqlens_q = metadata.cu_seqlens_q.data_as<std::int32_t>();
  p.offsets = metadata.cu_seqlens_q.size(0);
  p.kv_lens = cuda::index_view(common.kv_lens);
  p.to_kv_lens = metadata.kv_lens.data_as<std::int32_t>();
  p.requests = metadata.kv_lens.size(0);
  if (!metadata.page_table.defined()) return p;
  p.page_table = cuda::index_view(common.page_table);
  p.num_columns = common.page_table.size(1);
  p.to_page_table = metadata.page_table.data_as<std::int32_t>();
  p.columns = metadata.page_table.size(1);
  p.slots = cuda::index_view(common.slot_mapping);
  p.num_slots = common.slot_mapping.defined() ? common.slot_mapping.size(0) : 0;
  p.to_slots = metadata.slot_mapping.data_as<std::int64_t>();
  p.slot_capacity = metadata.slot_mapping.size(0);
  return p;
}

}  // namespace

void copy_step(const CommonAttnMetadata& common, const HpcAttnMetadata& metadata,
               const Execution& execution) {
  const StepParams params = params_of(common, metadata);
  const Device device = common.cu_seqlens_q.device();
  if (device.type == DeviceType::kCuda) return cuda::copy_step(params, device.index, execution);
  for (std::int64_t i = 0; i < num_step_words(params); ++i) write_step_word(params, i);
}

}  // namespace hpcattn
