// SPDX-License-Identifier: Apache-2.0
#include "hpcattn/backend/metadata_builder.h"

#include <algorithm>
#include <limits>

#include "src/backend/memory.h"
#include "src/backend/reasons.h"
#include "src/backend/step_copy.h"
#include "src/common/check.h"
#include "src/cuda/device.h"
#include "src/ops/check_tensor.h"

namespace hpcattn {
namespace {

constexpr std::string_view kOp = "HpcAttnMetadataBuilder";

std::int64_t ceil_div(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit; }

/// The engine's name of a dtype of K and V.
std::string kv_cache_dtype_text(DType dtype) {
  if (dtype == DType::kFloat8E4M3) return "fp8_e4m3";
  if (dtype == DType::kFloat8E5M2) return "fp8_e5m2";
  return std::string(name(dtype));
}

BackendRequest request_of(const HpcAttnMetadataBuilderOptions& options) {
  const AttentionGroup& group = options.group;
  BackendRequest request{.device = options.device,
                         .capability = capability_of(options.device),
                         .num_q_heads = group.num_q_heads,
                         .num_kv_heads = group.num_kv_heads,
                         .head_dim = group.head_dim,
                         .page_size = group.page_size,
                         .kv_cache_dtype = kv_cache_dtype_text(group.kv_dtype),
                         .attention_type = options.attention_type,
                         .window = group.window,
                         .num_speculative_tokens = options.num_speculative_tokens};
  // A float8 query comes from a model of wide activations, which the group does not name.
  request.dtype = is_fp8(group.q_dtype) ? DType::kBFloat16 : group.q_dtype;
  request.query_dtype = group.q_dtype;
  return request;
}

bool is_encoder(AttentionType type) {
  return type == AttentionType::kEncoder || type == AttentionType::kEncoderOnly;
}

std::vector<std::int64_t> numbers_of(const Tensor& tensor) {
  std::vector<std::int64_t> numbers(std::size_t(tensor.size(0)));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = ops::index_at(tensor, std::int64_t(i));
  }
  return numbers;
}

void check_on_host(std::string_view arg, const Tensor& tensor, std::int64_t size) {
  ops::check_shape(kOp, arg, tensor, {size});
  ops::check_dtype(kOp, arg, tensor, {DType::kInt32});
  ops::check_device(kOp, arg, tensor, Device{});
}

}  // namespace

BatchOrder decodes_first(std::span<const std::int64_t> query_lens, std::int64_t threshold) {
  check(threshold >= 1, "decodes_first: threshold is ", threshold, ", expected 1 or more.");
  const auto num_requests = std::int64_t(query_lens.size());
  const auto is_decode = [&](std::int64_t i) { return query_lens[std::size_t(i)] <= threshold; };

  BatchOrder result;
  result.order.reserve(query_lens.size());
  for (std::int64_t i = 0; i < num_requests; ++i) {
    check(query_lens[std::size_t(i)] >= 0, "decodes_first: query_lens[", i, "] is ",
          query_lens[std::size_t(i)], ", expected 0 or more.");
    if (is_decode(i)) ++result.num_decodes;
    result.order.push_back(i);
  }
  // Each prefill among the first num_decodes places changes with a decode behind them.
  std::int64_t behind = result.num_decodes;
  for (std::int64_t i = 0; i < result.num_decodes; ++i) {
    if (is_decode(i)) continue;
    while (!is_decode(behind)) ++behind;
    result.swaps.emplace_back(i, behind);
    std::swap(result.order[std::size_t(i)], result.order[std::size_t(behind)]);
    ++behind;
  }
  return result;
}

HpcAttnMetadataBuilder::HpcAttnMetadataBuilder(HpcAttnMetadataBuilderOptions options)
    : options_(std::move(options)) {
  refuse(kOp, HpcAttentionBackend::validate(request_of(options_)));
  check(is_encoder(options_.attention_type) == (options_.group.page_size == 0), kOp,
        ": group has page_size ", options_.group.page_size,
        ", expected 0 for encoder attention, which has no cache, and a page size for the others.");
  check(
      options_.max_num_requests >= 1 && options_.max_num_tokens >= 1 && options_.max_model_len >= 1,
      kOp, ": max_num_requests ", options_.max_num_requests, ", max_num_tokens ",
      options_.max_num_tokens, ", max_model_len ", options_.max_model_len,
      ", expected 1 or more of each.");
  check(options_.reorder_batch_threshold >= 1, kOp, ": reorder_batch_threshold is ",
        options_.reorder_batch_threshold, ", expected 1 or more.");
  // A plan holds windows as int32, and no request is longer than that.
  constexpr std::int64_t kLargestWindow = std::numeric_limits<std::int32_t>::max();
  if (options_.group.window) {
    options_.group.window = std::min(*options_.group.window, kLargestWindow);
  }
  decode_threshold_ = options_.reorder_batch_threshold + options_.num_speculative_tokens;
  MemoryPlan room;
  const std::int64_t words = plan_words_needed();
  const std::size_t plan = room.add(DType::kInt32, {words});
  const std::size_t prefill = room.add(DType::kInt32, {options_.max_num_requests + 1});
  memory_ = allocate(options_.device, room.bytes());
  plan_ = tensor_at(memory_, plan, DType::kInt32, {words}, options_.device);
  cu_seqlens_prefill_ =
      tensor_at(memory_, prefill, DType::kInt32, {options_.max_num_requests + 1}, options_.device);
}

HpcAttnMetadata HpcAttnMetadataBuilder::build(std::int64_t common_prefix_len,
                                              const CommonAttnMetadata& common, bool fast_build) {
  check_supported(common_prefix_len == 0, kOp, ": common_prefix_len is ", common_prefix_len,
                  ", expected 0: ", use_cascade_attention().reason, ".");
  HpcAttnMetadata metadata = describe(common, check_common(common), cu_seqlens_prefill_);
  copy_step(common, metadata, options_.execution);
  if (!fast_build) make_plan_in(metadata, plan_);
  return metadata;
}

CascadeAnswer HpcAttnMetadataBuilder::use_cascade_attention() {
  return {.use = false,
          .reason =
              "there is no cascade over a shared prefix; each request reads it through its own "
              "page table, with the same result"};
}

HpcAttnMetadata HpcAttnMetadataBuilder::build_for_drafting(const CommonAttnMetadata& common) {
  return build(0, common, /*fast_build=*/true);
}

HpcAttnMetadata HpcAttnMetadataBuilder::update_page_table(const HpcAttnMetadata& metadata,
                                                          const Tensor& page_table,
                                                          const Tensor& slot_mapping) {
  ops::check_shape("update_page_table", "page_table", page_table,
                   {metadata.num_requests(), ops::kAnySize});
  ops::check_dtype("update_page_table", "page_table", page_table, {DType::kInt32});
  ops::check_shape("update_page_table", "slot_mapping", slot_mapping, {metadata.num_actual_tokens});
  ops::check_dtype("update_page_table", "slot_mapping", slot_mapping,
                   {DType::kInt32, DType::kInt64});
  HpcAttnMetadata other = metadata;
  other.page_table = page_table;
  other.slot_mapping = slot_mapping;
  return other;
}

std::int64_t HpcAttnMetadataBuilder::max_pages() const {
  return ceil_div(options_.max_model_len, options_.group.page_size);
}

std::int64_t HpcAttnMetadataBuilder::plan_words_needed() const {
  const PlanCapacity capacity{.max_requests = options_.max_num_requests,
                              .max_tokens = options_.max_num_tokens,
                              .max_kv_len = options_.max_model_len,
                              .fixed_split = options_.fixed_split,
                              .num_workers = num_threads(options_.execution),
                              .device = options_.device};
  AttentionGroup causal = options_.group;
  causal.causal = true;
  AttentionGroup both_ways = options_.group;
  both_ways.causal = false;
  return std::max(plan_words(causal, capacity), plan_words(both_ways, capacity));
}

bool HpcAttnMetadataBuilder::is_causal(const CommonAttnMetadata& common) const {
  return common.causal && options_.attention_type == AttentionType::kDecoder;
}

HpcAttnMetadataBuilder::Lengths HpcAttnMetadataBuilder::lengths_of(
    const CommonAttnMetadata& common) const {
  if (options_.device.type == DeviceType::kCpu) {
    return {.offsets = numbers_of(common.cu_seqlens_q), .kv_lens = numbers_of(common.kv_lens)};
  }
  Lengths lengths;
  if (common.cu_seqlens_q_cpu.defined()) {
    check_on_host("cu_seqlens_q_cpu", common.cu_seqlens_q_cpu, common.num_requests + 1);
    lengths.offsets = numbers_of(common.cu_seqlens_q_cpu);
  } else {
    lengths.offsets = numbers_of(cuda::HostCopy(common.cu_seqlens_q, options_.execution).tensor());
  }
  if (common.kv_lens_cpu.defined()) {
    check_on_host("kv_lens_cpu", common.kv_lens_cpu, common.num_requests);
    lengths.kv_lens = numbers_of(common.kv_lens_cpu);
  } else if (options_.execution.check_values) {
    lengths.kv_lens = numbers_of(cuda::HostCopy(common.kv_lens, options_.execution).tensor());
  }
  return lengths;
}

HpcAttnMetadataBuilder::Lengths HpcAttnMetadataBuilder::check_common(
    const CommonAttnMetadata& common) const {
  const std::int64_t num_requests = common.num_requests;
  check(num_requests >= 0 && num_requests <= options_.max_num_requests, kOp, ": num_requests is ",
        num_requests, ", expected 0 to the capacity of ", options_.max_num_requests,
        ". Raise max_num_requests.");
  check(common.num_actual_tokens >= 0 && common.num_actual_tokens <= options_.max_num_tokens, kOp,
        ": num_actual_tokens is ", common.num_actual_tokens, ", expected 0 to the capacity of ",
        options_.max_num_tokens, ". Raise max_num_tokens.");

  ops::check_shape(kOp, "cu_seqlens_q", common.cu_seqlens_q, {num_requests + 1});
  ops::check_dtype(kOp, "cu_seqlens_q", common.cu_seqlens_q, {DType::kInt32});
  ops::check_device(kOp, "cu_seqlens_q", common.cu_seqlens_q, options_.device);
  ops::check_shape(kOp, "kv_lens", common.kv_lens, {num_requests});
  ops::check_dtype(kOp, "kv_lens", common.kv_lens, {DType::kInt32});
  ops::check_device(kOp, "kv_lens", common.kv_lens, options_.device);

  Lengths lengths = lengths_of(common);
  const Tensor offsets =
      Tensor::contiguous(lengths.offsets.data(), DType::kInt64, {num_requests + 1});
  ops::check_cu_seqlens(kOp, "cu_seqlens_q", offsets, common.num_actual_tokens,
                        "num_actual_tokens");
  for (std::size_t i = 0; i < lengths.kv_lens.size(); ++i) {
    const std::int64_t kv_len = lengths.kv_lens[i];
    check(kv_len >= 0 && kv_len <= options_.max_model_len, kOp, ": kv_lens[", i, "] is ", kv_len,
          ", expected 0 to the capacity of ", options_.max_model_len, ". Raise max_model_len.");
    const std::int64_t query_len = lengths.offsets[i + 1] - lengths.offsets[i];
    check(has_cache() || kv_len == query_len, kOp, ": kv_lens[", i, "] is ", kv_len,
          ", expected the request's ", query_len, " tokens, as encoder attention has no others.");
  }
  check_pages(common);
  return lengths;
}

void HpcAttnMetadataBuilder::check_pages(const CommonAttnMetadata& common) const {
  if (!has_cache()) return;
  ops::check_shape(kOp, "page_table", common.page_table, {common.num_requests, ops::kAnySize});
  ops::check_dtype(kOp, "page_table", common.page_table, {DType::kInt32});
  ops::check_device(kOp, "page_table", common.page_table, options_.device);
  if (options_.attention_type == AttentionType::kEncoderDecoder) {
    if (!common.slot_mapping.defined()) return;
    ops::check_shape(kOp, "slot_mapping", common.slot_mapping, {ops::kAnySize});
  } else {
    ops::check_shape(kOp, "slot_mapping", common.slot_mapping, {common.num_actual_tokens});
  }
  ops::check_dtype(kOp, "slot_mapping", common.slot_mapping, {DType::kInt32, DType::kInt64});
  ops::check_device(kOp, "slot_mapping", common.slot_mapping, options_.device);
}

HpcAttnMetadata HpcAttnMetadataBuilder::describe(const CommonAttnMetadata& common,
                                                 const Lengths& lengths,
                                                 const Tensor& prefill_offsets) const {
  HpcAttnMetadata metadata;
  metadata.step = common.step;
  metadata.num_actual_tokens = common.num_actual_tokens;
  metadata.causal = is_causal(common);
  metadata.slot_mapping = common.slot_mapping;
  metadata.kv_lens = common.kv_lens;
  metadata.page_table = common.page_table;
  metadata.cu_seqlens_q = common.cu_seqlens_q;

  const auto offset = [&](std::int64_t i) { return lengths.offsets[std::size_t(i)]; };
  const std::int64_t num_requests = common.num_requests;
  bool prefills_begun = false;
  bool uniform = true;
  for (std::int64_t i = 0; i < num_requests; ++i) {
    const std::int64_t query_len = offset(i + 1) - offset(i);
    metadata.max_query_len = std::max(metadata.max_query_len, query_len);
    prefills_begun = prefills_begun || query_len > decode_threshold_;
    if (prefills_begun) continue;
    ++metadata.num_decodes;
    if (query_len == 0) continue;  // padding says nothing about the others
    if (metadata.decode_query_len == 0) metadata.decode_query_len = query_len;
    uniform = uniform && query_len == metadata.decode_query_len;
  }
  if (!uniform) metadata.decode_query_len = 0;
  if (std::int64_t(lengths.kv_lens.size()) == num_requests) {
    for (std::int64_t length : lengths.kv_lens) {
      metadata.max_kv_len = std::max(metadata.max_kv_len, length);
    }
  } else {
    metadata.max_kv_len = options_.max_model_len;
  }
  metadata.num_prefills = num_requests - metadata.num_decodes;
  metadata.num_decode_tokens = offset(metadata.num_decodes);
  metadata.num_prefill_tokens = offset(num_requests) - metadata.num_decode_tokens;

  if (metadata.num_decodes > 0) {
    metadata.cu_seqlens_decode = common.cu_seqlens_q.slice(0, 0, metadata.num_decodes + 1);
  }
  if (metadata.num_prefills > 0) {
    metadata.cu_seqlens_prefill = prefill_offsets.slice(0, 0, metadata.num_prefills + 1);
  }
  return metadata;
}

void HpcAttnMetadataBuilder::make_plan_in(HpcAttnMetadata& metadata, const Tensor& plan) const {
  AttentionGroup group = options_.group;
  group.causal = metadata.causal;
  metadata.plan = plan;
  make_plan({.group = group,
             .cu_seqlens_q = metadata.cu_seqlens_q,
             .kv_lens = metadata.kv_lens,
             .fixed_split = options_.fixed_split,
             .plan = metadata.plan},
            options_.execution);
}

}  // namespace hpcattn
