// SPDX-License-Identifier: Apache-2.0
// HpcAttentionBackend::validate and explain: every reason of a refusal, from src/ops/support.h's
// table.
#include <cmath>

#include "hpcattn/backend/attention_backend.h"
#include "src/common/check.h"
#include "src/cpu/attention/attention.h"
#include "src/cpu/attention/task.h"
#include "src/cuda/attention.h"
#include "src/ops/support.h"
#include "src/plan/device_layout.h"

namespace hpcattn {
namespace {

using Reasons = std::vector<std::string>;

template <typename... Parts>
void require(Reasons& reasons, bool condition, const Parts&... parts) {
  if (!condition) reasons.push_back(message(parts...));
}

bool has_cache(AttentionType type) {
  return type == AttentionType::kDecoder || type == AttentionType::kEncoderDecoder;
}

void check_device(Reasons& reasons, const BackendRequest& request) {
  if (request.device.type == DeviceType::kCpu) return;
  const std::string device = to_string(request.device);
  require(reasons, request.capability.has_value(), "the compute capability of ", device,
          " is not given");
  if (!request.capability) return;
  const ComputePath path = HpcAttentionBackend::compute_path(*request.capability);
  require(reasons, path != ComputePath::kNone, device, " has compute capability ",
          request.capability->major, ".", request.capability->minor, ", expected 8.0 or above");
  require(reasons, request.dtype != DType::kFloat32, "dtype float32 runs on the CPU alone, got ",
          device, "; use float16 or bfloat16 there");
}

void check_shape(Reasons& reasons, const BackendRequest& request) {
  require(reasons, request.num_q_heads > 0, "num_q_heads is ", request.num_q_heads,
          ", expected 1 or more");
  require(reasons, request.num_kv_heads > 0, "num_kv_heads is ", request.num_kv_heads,
          ", expected 1 or more");
  if (request.num_q_heads > 0 && request.num_kv_heads > 0) {
    require(reasons, request.num_q_heads % request.num_kv_heads == 0, request.num_q_heads,
            " query heads do not divide into groups over ", request.num_kv_heads, " KV heads");
  }
  require(reasons, ops::head_dim_supported(request.head_dim), "head_dim is ", request.head_dim,
          ", expected ", ops::supported_head_dims_text());
  if (has_cache(request.attention_type)) {
    require(reasons, ops::page_size_supported(request.page_size), "page_size is ",
            request.page_size, ", expected ", ops::supported_page_sizes_text());
  }
}

void check_dtypes(Reasons& reasons, const BackendRequest& request) {
  if (!is_wide_float(request.dtype)) {
    reasons.push_back(message("dtype is ", name(request.dtype), ", expected ",
                              ops::join_or(ops::supported_activation_dtypes())));
    return;
  }
  const DType query = request.query_dtype.value_or(request.dtype);
  require(reasons, query == request.dtype || query == DType::kFloat8E4M3, "query_dtype is ",
          name(query), ", expected ", name(request.dtype), " (as dtype) or float8_e4m3");
  const std::optional<DType> kv = parse_kv_cache_dtype(request.kv_cache_dtype, request.dtype);
  require(reasons, kv.has_value(), "kv_cache_dtype is '", request.kv_cache_dtype, "', expected ",
          ops::join_or(HpcAttentionBackend::supported_kv_cache_dtypes()));
  if (!has_cache(request.attention_type)) {
    require(reasons, query == request.dtype,
            "a float8 query needs a float8 cache, and attention without a cache has none");
    return;
  }
  if (!kv) return;
  require(reasons, ops::store_dtypes_supported(request.dtype, *kv), "a ", name(*kv),
          " KV cache can not be written by a ", name(request.dtype), " model, expected ",
          ops::store_dtypes_text(request.dtype));
  require(reasons, ops::attention_kv_dtype_supported(query, *kv), "a ", name(*kv),
          " KV cache can not be read by a ", name(query), " query, expected ",
          ops::attention_dtypes_text(query));
  if (request.fused_output_dtype && ops::attention_kv_dtype_supported(query, *kv)) {
    require(reasons, ops::attention_dtypes_supported(query, *kv, *request.fused_output_dtype),
            "fused output of ", name(*request.fused_output_dtype), " is not there, expected ",
            ops::attention_dtypes_text(query));
  }
}

void check_mathematics(Reasons& reasons, const BackendRequest& request) {
  if (request.scale) {
    require(reasons, std::isfinite(*request.scale), "scale is ", *request.scale,
            ", expected a finite number");
  }
  if (request.window) {
    require(reasons, *request.window >= 1, "window is ", *request.window,
            ", expected 1 or more tokens (its own included)");
  }
  require(reasons, std::isfinite(request.softcap) && request.softcap >= 0.0, "softcap is ",
          request.softcap, ", expected 0 (none) or above");
  require(reasons, request.num_speculative_tokens >= 0, "num_speculative_tokens is ",
          request.num_speculative_tokens, ", expected 0 or more");
  if (request.attention_type == AttentionType::kEncoderDecoder) {
    require(reasons, !request.window,
            "a window over an encoder's tokens: cross attention has no distance between positions");
    require(reasons, !request.alibi,
            "ALiBi over an encoder's tokens: cross attention has no distance between positions");
  }
}

void check_not_offered(Reasons& reasons, const BackendRequest& request) {
  require(reasons, !request.alibi_sqrt, "square-root ALiBi is not offered, only the linear one");
  require(reasons, !request.mla, "multi-head latent attention is not offered");
  require(reasons, !request.sparse, "sparse attention (to chosen pages) is not offered");
  require(
      reasons, !request.multimodal_prefix,
      "spans that attend both ways within a causal request are not offered; a whole request can "
      "(non_causal)");
  require(
      reasons, request.decode_context_parallel == 1 && request.prefill_context_parallel == 1,
      "context parallel of ", request.decode_context_parallel, " (decode) and ",
      request.prefill_context_parallel,
      " (prefill) ranks: exchanging partial results is the engine's; paged_attention returns their "
      "LSE and merge_partials joins them");
}

AttentionSpec spec_of(const BackendRequest& request, const cuda::AttentionDevice& device) {
  return {.head_dim = static_cast<int>(request.head_dim),
          .q_dtype = request.query_dtype.value_or(request.dtype),
          .kv_dtype = *parse_kv_cache_dtype(request.kv_cache_dtype, request.dtype),
          .softcap = request.softcap > 0.0,
          .alibi = request.alibi,
          .shared_budget = device.shared_budget};
}

bool prefill_takes_request(const BackendRequest& request, std::int64_t rows,
                           const cuda::AttentionDevice& device) {
  PrefillSpec spec{.attention = spec_of(request, device)};
  spec.attention.shared_budget = static_cast<int>(device.most_shared);
  spec.page_size = has_cache(request.attention_type) ? static_cast<int>(request.page_size) : 0;
  return cuda::prefill_is_chosen(spec, rows, request.batch_invariant ? 1 : 0, device.arch);
}

/// Of a request that is served.
void explain_cuda(const BackendRequest& request, std::int64_t query_tokens,
                  KernelExplanation& explanation) {
  const std::int64_t group = request.num_q_heads / request.num_kv_heads;
  const std::int64_t rows = group * query_tokens;
  const plan::TileRows tiles = plan::tile_rows(static_cast<int>(request.head_dim));
  // A request alone, or among others of as many rows.
  const cuda::AttentionDevice device = cuda::attention_device(
      cuda::arch_of({.major = request.capability->major, .minor = request.capability->minor}));
  const bool decode = cuda::decode_spec(spec_of(request, device),
                                        static_cast<int>(request.page_size), rows, device.arch)
                          .has_value() &&
                      has_cache(request.attention_type) && !request.batch_invariant;
  const bool prefill = !decode && prefill_takes_request(request, rows, device);
  explanation.kernel = decode    ? cuda::kDecodeName
                       : prefill ? cuda::kPrefillName
                                 : cuda::kGenericName;
  explanation.reason = message(rows, " rows (", query_tokens, " query tokens x ", group,
                               " heads of a group) read each KV head: ");
  if (rows <= tiles.narrow) {
    explanation.reason += message("at most ", tiles.narrow, " are one narrow tile");
  } else {
    explanation.reason += message("more than ", tiles.narrow, " are tiles of ", tiles.wide);
  }
  if (decode || prefill) {
    explanation.reason += message("; at most ", cuda::kMostDecodeRows,
                                  " on average of a batch take Hopper's decode kernel, more of one "
                                  "dtype its prefill kernel, else the generic one");
  }
}

}  // namespace

std::vector<std::string> HpcAttentionBackend::validate(const BackendRequest& request) {
  Reasons reasons;
  check_device(reasons, request);
  check_shape(reasons, request);
  check_dtypes(reasons, request);
  check_mathematics(reasons, request);
  check_not_offered(reasons, request);
  return reasons;
}

KernelExplanation HpcAttentionBackend::explain(const BackendRequest& request,
                                               std::int64_t query_tokens) {
  check(query_tokens >= 1, "explain: query_tokens is ", query_tokens, ", expected 1 or more.");
  KernelExplanation explanation{.refusals = validate(request)};
  if (!explanation.refusals.empty()) {
    explanation.reason = "no kernel: the request is refused";
    return explanation;
  }
  const std::int64_t group = request.num_q_heads / request.num_kv_heads;
  const std::int64_t rows = group * query_tokens;
  if (request.device.type == DeviceType::kCuda) {
    explain_cuda(request, query_tokens, explanation);
    return explanation;
  }
  explanation.kernel = cpu::kernel_name(rows);
  explanation.reason = message(rows, " rows (", query_tokens, " query tokens x ", group,
                               " heads of a group) read each KV head: ");
  if (rows <= cpu::kNarrowRows) {
    explanation.reason += message("at most ", cpu::kNarrowRows,
                                  " take the narrow kernel, whose lanes are the head dim");
  } else {
    explanation.reason +=
        message("more than ", cpu::kNarrowRows,
                " take the wide kernel, whose lanes are the rows, in tiles of ", cpu::kTileRows);
  }
  return explanation;
}

}  // namespace hpcattn
