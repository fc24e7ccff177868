// SPDX-License-Identifier: Apache-2.0
// What the small tensors of an attention call hold: lengths, page ids, scales, sinks, slopes.
// Shapes and dtypes were checked before; on a GPU these checks run over copies, where the caller
// asks for them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <list>
#include <string_view>

#include "src/common/check.h"
#include "src/common/float_bits.h"
#include "src/cuda/device.h"
#include "src/ops/check_attention.h"
#include "src/ops/check_tensor.h"
#include "src/ops/query_scale.h"
#include "src/plan/rows.h"

namespace hpcattn::ops {
namespace {

/// Of the tokens that are computed: a scale of padding may be anything.
void check_query_scale(std::string_view op, const Tensor& scale, const Tensor& cu_seqlens_q) {
  const auto check_one = [&](const QueryToken& at, std::int64_t head) {
    const float value = scale.data_as<const float>()[query_scale_offset(scale, at, head)];
    check(std::isfinite(value) && value >= 0.0F, op, ": q_scale of token ", at.token, ", head ",
          head, " is ", value, ", expected a finite scale, 0 or more.");
  };
  if (scale.rank() == 1) return check_one({}, 0);
  for (std::int64_t request = 0; request + 1 < cu_seqlens_q.size(0); ++request) {
    const std::int64_t first = index_at(cu_seqlens_q, request);
    const std::int64_t num_tokens = index_at(cu_seqlens_q, request + 1) - first;
    check(!is_by_request(scale) || num_tokens <= scale.size(2), op, ": request ", request, " has ",
          num_tokens, " query tokens, and q_scale holds ", scale.size(2),
          " of each. Make its last dim longer.");
    for (std::int64_t i = 0; i < num_tokens; ++i) {
      for (std::int64_t head = 0; head < scale.size(1); ++head) {
        check_one({.token = first + i, .request = request, .of_request = i}, head);
      }
    }
  }
}

void check_options(std::string_view op, const AttentionOptions& o, const Tensor& cu_seqlens_q,
                   std::int64_t num_kv_heads) {
  for (std::int64_t head = 0; o.alibi_slopes.defined() && head < o.alibi_slopes.size(0); ++head) {
    const float slope = o.alibi_slopes.data_as<const float>()[head * o.alibi_slopes.stride(0)];
    check(std::isfinite(slope), op, ": alibi_slopes[", head, "] is ", slope,
          ", expected a finite number.");
  }
  for (std::int64_t head = 0; o.sinks.defined() && head < o.sinks.size(0); ++head) {
    const float sink = load_float(o.sinks.data(), o.sinks.dtype(), head * o.sinks.stride(0));
    check(sink < std::numeric_limits<float>::infinity(), op, ": sinks[", head, "] is ", sink,
          ", expected a number or -inf (no sink).");
  }
  if (o.q_scale.defined()) check_query_scale(op, o.q_scale, cu_seqlens_q);
  const std::pair<std::string_view, const Tensor*> scales[] = {
      {"k_scale", &o.k_scale}, {"v_scale", &o.v_scale}, {"out_scale", &o.out_scale}};
  for (const auto& [arg, scale] : scales) {
    if (scale->defined()) check_scale(op, arg, *scale, scale->device(), num_kv_heads);
  }
}

/// Lengths that the table holds, and page ids inside the pool where a row sees their keys.
void check_pages(const PagedAttentionArgs& args) {
  constexpr std::string_view kOp = "paged_attention";
  const std::int64_t page_size = args.k_cache.size(1);
  const std::int64_t num_pages = args.k_cache.size(0);
  const std::int64_t capacity = args.page_table.size(1) * page_size;
  // Clamped as group_of does: plan::visible adds the window to a position.
  const std::int64_t window = std::min<std::int64_t>(args.options.window.value_or(0), INT32_MAX);
  const plan::Mask mask{.causal = args.options.causal, .window = window};
  for (std::int64_t i = 0; i < args.kv_lens.size(0); ++i) {
    const std::int64_t kv_len = index_at(args.kv_lens, i);
    check(kv_len >= 0, kOp, ": kv_lens[", i, "] is ", kv_len, ", expected 0 or more.");
    check(kv_len <= capacity, kOp, ": kv_lens[", i, "] is ", kv_len, ", page_table holds ",
          args.page_table.size(1), " pages of ", page_size, " = ", capacity, " tokens.");
    const std::int64_t num_tokens =
        index_at(args.cu_seqlens_q, i + 1) - index_at(args.cu_seqlens_q, i);
    if (num_tokens == 0) continue;
    const plan::KvRange seen = plan::visible_to_any(mask, kv_len - num_tokens, kv_len - 1, kv_len);
    for (std::int64_t page = seen.begin / page_size; page * page_size < seen.end; ++page) {
      const std::int64_t id = index_at(args.page_table, i, page);
      check(id >= -1 && id < num_pages, kOp, ": page_table[", i, ", ", page, "] is ", id,
            ", expected a page id below ", num_pages, ", or -1 for none.");
    }
  }
}

/// Replaces device tensors by copies on the host, which it keeps.
class HostCopies {
 public:
  explicit HostCopies(const Execution& execution) : execution_(execution) {}
  void take(Tensor& tensor) {
    if (!tensor.defined() || tensor.device().type == DeviceType::kCpu) return;
    copies_.emplace_back(tensor, execution_);
    tensor = copies_.back().tensor();
  }
  void take(AttentionOptions& options) {
    for (Tensor* tensor : {&options.alibi_slopes, &options.sinks, &options.q_scale,
                           &options.k_scale, &options.v_scale, &options.out_scale}) {
      take(*tensor);
    }
  }

 private:
  const Execution& execution_;
  std::list<cuda::HostCopy> copies_;
};

/// On the CPU values are always read; on a GPU where the caller asks for it.
bool reads_values(const Tensor& q, const Execution& execution) {
  return q.device().type == DeviceType::kCpu || execution.check_values;
}

}  // namespace

void check_paged_attention_values(const PagedAttentionArgs& args, const Execution& execution) {
  if (!reads_values(args.q, execution)) return;
  HostCopies copies(execution);
  PagedAttentionArgs host = args;
  for (Tensor* tensor : {&host.page_table, &host.cu_seqlens_q, &host.kv_lens}) copies.take(*tensor);
  copies.take(host.options);
  check_cu_seqlens("paged_attention", "cu_seqlens_q", host.cu_seqlens_q, host.q.size(0),
                   "tokens in q");
  check_options("paged_attention", host.options, host.cu_seqlens_q, host.k_cache.size(2));
  check_pages(host);
}

void check_packed_attention_values(const PackedAttentionArgs& args, const Execution& execution) {
  if (!reads_values(args.q, execution)) return;
  HostCopies copies(execution);
  PackedAttentionArgs host = args;
  for (Tensor* tensor : {&host.cu_seqlens_q, &host.cu_seqlens_k}) copies.take(*tensor);
  copies.take(host.options);
  check_cu_seqlens("packed_attention", "cu_seqlens_q", host.cu_seqlens_q, host.q.size(0),
                   "tokens in q");
  check_cu_seqlens("packed_attention", "cu_seqlens_k", host.cu_seqlens_k, host.k.size(0),
                   "tokens in k");
  check_options("packed_attention", host.options, host.cu_seqlens_q, host.k.size(1));
}

}  // namespace hpcattn::ops
