// SPDX-License-Identifier: Apache-2.0
#include "src/ops/check_attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

#include "src/common/check.h"
#include "src/common/float_bits.h"
#include "src/ops/check_tensor.h"
#include "src/ops/overlap.h"
#include "src/ops/support.h"
#include "src/plan/rows.h"

namespace hpcattn::ops {
namespace {

/// What both operators have, under both operators' names for it.
struct Common {
  std::string_view op;
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  std::string_view k_name;
  std::string_view v_name;
  const Tensor& cu_seqlens_q;
  const Tensor& out;
  const Tensor& lse;
  const AttentionOptions& options;
};

void check_query(const Common& c) {
  check_shape(c.op, "q", c.q, {kAnySize, kAnySize, kAnySize});
  check_supported(c.q.device().type == DeviceType::kCpu, c.op, ": q is on ",
                  to_string(c.q.device()),
                  "; this build has kernels for the cpu alone. Move the tensors to the cpu.");
  check_last_contiguous(c.op, "q", c.q);
  check(c.q.size(1) > 0, c.op, ": q has no heads (", to_string(c.q), ").");
  check_supported(head_dim_supported(c.q.size(2)), c.op, ": head_dim is ", c.q.size(2),
                  ", supported are ", supported_head_dims_text(),
                  ". Pad q, K and V with zeros to one of these.");
}

void check_keys_and_values(const Common& c) {
  check_last_contiguous(c.op, c.k_name, c.k);
  check_last_contiguous(c.op, c.v_name, c.v);
  check_device(c.op, c.k_name, c.k, c.q.device());
  check_device(c.op, c.v_name, c.v, c.q.device());
  check(c.k.size(-1) == c.q.size(2), c.op, ": ", c.k_name, " has head_dim ", c.k.size(-1),
        ", expected ", c.q.size(2), " (as q has).");
  check(c.k.size(-2) > 0 && c.q.size(1) % c.k.size(-2) == 0, c.op, ": q has ", c.q.size(1),
        " heads and ", c.k_name, " has ", c.k.size(-2), ", expected a multiple of the KV heads.");
  check(c.k.dtype() == c.v.dtype(), c.op, ": ", c.k_name, " has dtype ", name(c.k.dtype()), " and ",
        c.v_name, " ", name(c.v.dtype()), ", expected one dtype for both.");
  check_supported(attention_dtypes_supported(c.q.dtype(), c.k.dtype(), c.out.dtype()), c.op,
                  ": q has dtype ", name(c.q.dtype()), ", ", c.k_name, " ", name(c.k.dtype()),
                  ", out ", name(c.out.dtype()),
                  "; supported are: ", attention_dtypes_text(c.q.dtype()), ".");
}

void check_outputs(const Common& c) {
  check_shape(c.op, "out", c.out, {c.q.size(0), c.q.size(1), c.q.size(2)});
  check_device(c.op, "out", c.out, c.q.device());
  check_last_contiguous(c.op, "out", c.out);
  if (c.lse.defined()) {
    check_shape(c.op, "lse", c.lse, {c.q.size(0), c.q.size(1)});
    check_dtype(c.op, "lse", c.lse, {DType::kFloat32});
    check_device(c.op, "lse", c.lse, c.q.device());
  }
  const NamedTensor outputs[] = {{"out", &c.out}, {"lse", &c.lse}};
  const NamedTensor inputs[] = {{"q", &c.q}, {c.k_name, &c.k}, {c.v_name, &c.v}};
  check_outputs_apart(c.op, outputs, inputs);
}

/// The same for what is small: lengths, pages, scales. Called when all of it has its shape.
void check_outputs_apart_from_indices(const Common& c, std::initializer_list<NamedTensor> indices) {
  const AttentionOptions& o = c.options;
  const NamedTensor outputs[] = {{"out", &c.out}, {"lse", &c.lse}};
  const NamedTensor factors[] = {{"alibi_slopes", &o.alibi_slopes}, {"sinks", &o.sinks},
                                 {"q_scale", &o.q_scale},           {"k_scale", &o.k_scale},
                                 {"v_scale", &o.v_scale},           {"out_scale", &o.out_scale}};
  check_outputs_apart(c.op, outputs, {indices.begin(), indices.size()});
  check_outputs_apart(c.op, outputs, factors);
}

/// Of the tokens that are computed: a scale of padding may be anything.
void check_query_scale_values(const Common& c) {
  const Tensor& scale = c.options.q_scale;
  const bool per_token = scale.rank() == 2;
  const std::int64_t tokens = per_token ? index_at(c.cu_seqlens_q, c.cu_seqlens_q.size(0) - 1) : 1;
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (std::int64_t head = 0; head < (per_token ? scale.size(1) : 1); ++head) {
      const std::int64_t offset =
          token * scale.stride(0) + (per_token ? head * scale.stride(1) : 0);
      const float value = scale.data_as<const float>()[offset];
      check(std::isfinite(value) && value >= 0.0F, c.op, ": q_scale of token ", token, ", head ",
            head, " is ", value, ", expected a finite scale, 0 or more.");
    }
  }
}

void check_query_scale(const Common& c) {
  const Tensor& scale = c.options.q_scale;
  if (!is_fp8(c.q.dtype())) {
    check(!scale.defined(), c.op, ": q_scale is given and q is ", name(c.q.dtype()),
          "; it goes with a float8 q. Leave it out.");
    return;
  }
  const bool fits =
      scale.defined() &&
      ((scale.rank() == 1 && scale.size(0) == 1) ||
       (scale.rank() == 2 && scale.size(0) == c.q.size(0) && scale.size(1) == c.q.size(1)));
  check(fits, c.op, ": q_scale is ", to_string(scale), ", expected float32 [1] or [", c.q.size(0),
        ", ", c.q.size(1), "] for a float8 q.");
  check(scale.data() != nullptr || scale.num_elements() == 0, c.op, ": q_scale is ",
        to_string(scale), " with a null pointer, expected memory.");
  check_dtype(c.op, "q_scale", scale, {DType::kFloat32});
  check_device(c.op, "q_scale", scale, c.q.device());
  check_query_scale_values(c);
}

void check_scale_of(const Common& c, std::string_view arg, const Tensor& scale, std::string_view of,
                    const Tensor& tensor, std::int64_t num_heads) {
  if (is_fp8(tensor.dtype())) {
    check_scale(c.op, arg, scale, c.q.device(), num_heads);
    return;
  }
  check(!scale.defined(), c.op, ": ", arg, " is given and ", of, " is ", name(tensor.dtype()),
        "; it goes with float8. Leave it out.");
}

void check_options(const Common& c) {
  const AttentionOptions& o = c.options;
  check(std::isfinite(o.scale), c.op, ": scale is ", o.scale,
        ", expected a finite number (1/sqrt(head_dim) in most models).");
  check(std::isfinite(o.softcap) && o.softcap >= 0.0, c.op, ": softcap is ", o.softcap,
        ", expected 0 (none) or a finite number above it.");
  check(!o.window || *o.window >= 1, c.op, ": window is ", o.window.value_or(0),
        ", expected 1 or more KV tokens; leave it out for none.");
  if (o.alibi_slopes.defined()) {
    check_shape(c.op, "alibi_slopes", o.alibi_slopes, {c.q.size(1)});
    check_dtype(c.op, "alibi_slopes", o.alibi_slopes, {DType::kFloat32});
    check_device(c.op, "alibi_slopes", o.alibi_slopes, c.q.device());
    for (std::int64_t head = 0; head < o.alibi_slopes.size(0); ++head) {
      const float slope = o.alibi_slopes.data_as<const float>()[head * o.alibi_slopes.stride(0)];
      check(std::isfinite(slope), c.op, ": alibi_slopes[", head, "] is ", slope,
            ", expected a finite number.");
    }
  }
  if (o.sinks.defined()) {
    check_shape(c.op, "sinks", o.sinks, {c.q.size(1)});
    check_dtype(c.op, "sinks", o.sinks, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
    check_device(c.op, "sinks", o.sinks, c.q.device());
    for (std::int64_t head = 0; head < o.sinks.size(0); ++head) {
      const float sink = load_float(o.sinks.data(), o.sinks.dtype(), head * o.sinks.stride(0));
      check(sink < std::numeric_limits<float>::infinity(), c.op, ": sinks[", head, "] is ", sink,
            ", expected a number or -inf (no sink).");
    }
  }
  check_query_scale(c);
  check_scale_of(c, "k_scale", o.k_scale, c.k_name, c.k, c.k.size(-2));
  check_scale_of(c, "v_scale", o.v_scale, c.v_name, c.v, c.k.size(-2));
  check_scale_of(c, "out_scale", o.out_scale, "out", c.out, 1);
}

void check_index_tensor(const Common& c, std::string_view arg, const Tensor& tensor) {
  check_dtype(c.op, arg, tensor, {DType::kInt32});
  check_device(c.op, arg, tensor, c.q.device());
}

void check_cu_seqlens_q(const Common& c, std::int64_t num_requests) {
  check_shape(c.op, "cu_seqlens_q", c.cu_seqlens_q, {num_requests + 1});
  check_index_tensor(c, "cu_seqlens_q", c.cu_seqlens_q);
  check_cu_seqlens(c.op, "cu_seqlens_q", c.cu_seqlens_q, c.q.size(0), "tokens in q");
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

}  // namespace

void check_paged_attention(const PagedAttentionArgs& args) {
  const Common c{.op = "paged_attention",
                 .q = args.q,
                 .k = args.k_cache,
                 .v = args.v_cache,
                 .k_name = "k_cache",
                 .v_name = "v_cache",
                 .cu_seqlens_q = args.cu_seqlens_q,
                 .out = args.out,
                 .lse = args.lse,
                 .options = args.options};
  check_query(c);
  check_shape(c.op, "k_cache", c.k, {kAnySize, kAnySize, kAnySize, c.q.size(2)});
  check_shape(c.op, "v_cache", c.v, {c.k.size(0), c.k.size(1), c.k.size(2), c.k.size(3)});
  check_supported(page_size_supported(c.k.size(1)), c.op, ": page_size is ", c.k.size(1),
                  ", expected ", supported_page_sizes_text(), ".");
  check_outputs(c);
  check_keys_and_values(c);
  check_shape(c.op, "kv_lens", args.kv_lens, {kAnySize});
  check_index_tensor(c, "kv_lens", args.kv_lens);
  check_cu_seqlens_q(c, args.kv_lens.size(0));
  check_options(c);
  check_shape(c.op, "page_table", args.page_table, {args.kv_lens.size(0), kAnySize});
  check_index_tensor(c, "page_table", args.page_table);
  check_pages(args);
  check_outputs_apart_from_indices(c, {{"cu_seqlens_q", &args.cu_seqlens_q},
                                       {"kv_lens", &args.kv_lens},
                                       {"page_table", &args.page_table},
                                       {"plan", &args.plan}});
}

void check_packed_attention(const PackedAttentionArgs& args) {
  const Common c{.op = "packed_attention",
                 .q = args.q,
                 .k = args.k,
                 .v = args.v,
                 .k_name = "k",
                 .v_name = "v",
                 .cu_seqlens_q = args.cu_seqlens_q,
                 .out = args.out,
                 .lse = args.lse,
                 .options = args.options};
  check_query(c);
  check_shape(c.op, "k", c.k, {kAnySize, kAnySize, c.q.size(2)});
  check_shape(c.op, "v", c.v, {c.k.size(0), c.k.size(1), c.k.size(2)});
  check_outputs(c);
  check_keys_and_values(c);
  check_shape(c.op, "cu_seqlens_k", args.cu_seqlens_k, {kAnySize});
  check(args.cu_seqlens_k.size(0) >= 1, c.op, ": cu_seqlens_k is ", to_string(args.cu_seqlens_k),
        ", expected one entry more than there are requests.");
  check_index_tensor(c, "cu_seqlens_k", args.cu_seqlens_k);
  check_cu_seqlens_q(c, args.cu_seqlens_k.size(0) - 1);
  check_cu_seqlens(c.op, "cu_seqlens_k", args.cu_seqlens_k, c.k.size(0), "tokens in k");
  check_options(c);
  check_outputs_apart_from_indices(c, {{"cu_seqlens_q", &args.cu_seqlens_q},
                                       {"cu_seqlens_k", &args.cu_seqlens_k},
                                       {"plan", &args.plan}});
}

}  // namespace hpcattn::ops
