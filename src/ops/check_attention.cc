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
#include "src/ops/query_scale.h"
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
  check_supported(
      c.q.device().type == DeviceType::kCpu || c.q.dtype() != DType::kFloat32, c.op,
      ": q has dtype float32 on ", [&] { return to_string(c.q.device()); },
      ", expected float16, bfloat16 or float8_e4m3: float32 attention runs on the cpu "
      "alone. Convert q, K and V, or move the tensors to the cpu.");
  check_last_contiguous(c.op, "q", c.q);
  check(c.q.size(1) > 0, c.op, ": q has no heads (", [&] { return to_string(c.q); }, ").");
  check_supported(
      head_dim_supported(c.q.size(2)), c.op, ": head_dim is ", c.q.size(2), ", supported are ",
      [&] { return supported_head_dims_text(); }, ". Pad q, K and V with zeros to one of these.");
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
  check_supported(
      attention_dtypes_supported(c.q.dtype(), c.k.dtype(), c.out.dtype()), c.op, ": q has dtype ",
      name(c.q.dtype()), ", ", c.k_name, " ", name(c.k.dtype()), ", out ", name(c.out.dtype()),
      "; supported are: ", [&] { return attention_dtypes_text(c.q.dtype()); }, ".");
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
       (scale.rank() == 2 && scale.size(0) == c.q.size(0) && scale.size(1) == c.q.size(1)) ||
       (is_by_request(scale) && scale.size(0) == c.cu_seqlens_q.size(0) - 1 &&
        scale.size(1) == c.q.size(1)));
  check(
      fits, c.op, ": q_scale is ", [&] { return to_string(scale); }, ", expected float32 [1], [",
      c.q.size(0), ", ", c.q.size(1), "] or [", c.cu_seqlens_q.size(0) - 1, ", ", c.q.size(1),
      ", most query tokens of a request] for a float8 q.");
  check(
      scale.data() != nullptr || scale.num_elements() == 0, c.op, ": q_scale is ",
      [&] { return to_string(scale); }, " with a null pointer, expected memory.");
  check_dtype(c.op, "q_scale", scale, {DType::kFloat32});
  check_device(c.op, "q_scale", scale, c.q.device());
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
  }
  if (o.sinks.defined()) {
    check_shape(c.op, "sinks", o.sinks, {c.q.size(1)});
    check_dtype(c.op, "sinks", o.sinks, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
    check_device(c.op, "sinks", o.sinks, c.q.device());
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
  check_supported(
      page_size_supported(c.k.size(1)), c.op, ": page_size is ", c.k.size(1), ", expected ",
      [&] { return supported_page_sizes_text(); }, ".");
  check_outputs(c);
  check_keys_and_values(c);
  check_shape(c.op, "kv_lens", args.kv_lens, {kAnySize});
  check_index_tensor(c, "kv_lens", args.kv_lens);
  check_cu_seqlens_q(c, args.kv_lens.size(0));
  check_options(c);
  check_shape(c.op, "page_table", args.page_table, {args.kv_lens.size(0), kAnySize});
  check_index_tensor(c, "page_table", args.page_table);
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
  check(
      args.cu_seqlens_k.size(0) >= 1, c.op, ": cu_seqlens_k is ",
      [&] { return to_string(args.cu_seqlens_k); },
      ", expected one entry more than there are requests.");
  check_index_tensor(c, "cu_seqlens_k", args.cu_seqlens_k);
  check_cu_seqlens_q(c, args.cu_seqlens_k.size(0) - 1);
  check_options(c);
  check_outputs_apart_from_indices(c, {{"cu_seqlens_q", &args.cu_seqlens_q},
                                       {"cu_seqlens_k", &args.cu_seqlens_k},
                                       {"plan", &args.plan}});
}

}  // namespace hpcattn::ops
