// SPDX-License-Identifier: Apache-2.0
// torch.ops.hpcattn: every schema in one place. Tensors marked (x!) are written, all others only
// read. The operators have no return values: outputs are arguments, so that a captured graph can
// reuse them. python/hpcattn/ops.py has the functional forms.
#include "torch/ops.h"

STABLE_TORCH_LIBRARY(hpcattn, library) {
  library.def(
      "paged_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor page_table, "
      "Tensor cu_seqlens_q, Tensor kv_lens, Tensor(a!) out, Tensor(b!)? lse, *, float scale, "
      "bool causal=True, int? window=None, float softcap=0.0, Tensor? alibi_slopes=None, "
      "Tensor? sinks=None, Tensor? q_scale=None, Tensor? k_scale=None, Tensor? v_scale=None, "
      "Tensor? out_scale=None, Tensor? plan=None, int fixed_split=0) -> ()");
  library.def(
      "packed_attention(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, "
      "Tensor(a!) out, Tensor(b!)? lse, *, float scale, bool causal=True, int? window=None, "
      "float softcap=0.0, Tensor? alibi_slopes=None, Tensor? sinks=None, Tensor? q_scale=None, "
      "Tensor? k_scale=None, Tensor? v_scale=None, Tensor? out_scale=None, Tensor? plan=None, "
      "int fixed_split=0) -> ()");
  library.def(
      "merge_partials(Tensor[] partials, Tensor[] lses, Tensor(a!) out, Tensor(b!)? lse) -> ()");
  library.def(
      "store_kv(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slot_mapping, *, "
      "Tensor? k_scale=None, Tensor? v_scale=None) -> ()");
  library.def(
      "rope_norm_store_kv(Tensor q, Tensor k, Tensor v, Tensor cos_sin, Tensor(a!) out_q, "
      "Tensor(b!)? out_q_scale=None, Tensor(c!)? out_k=None, Tensor(d!)? out_v=None, "
      "Tensor(e!)? k_cache=None, Tensor(f!)? v_cache=None, Tensor(g!)? cleared=None, *, "
      "str style='neox', "
      "Tensor? positions=None, int[]? mrope_section=None, Tensor? cu_seqlens_q=None, "
      "Tensor? kv_lens=None, Tensor? page_table=None, Tensor? slot_mapping=None, "
      "Tensor? k_scale=None, Tensor? v_scale=None, Tensor? q_scale=None, float upper_max=448.0, "
      "str norm_policy='none', str norm_scope='head', Tensor? q_norm_weight=None, "
      "Tensor? k_norm_weight=None, float? norm_eps=None) -> ()");
  library.def(
      "make_plan(Tensor cu_seqlens_q, Tensor kv_lens, Tensor(a!) plan, *, int num_q_heads, "
      "int num_kv_heads, int head_dim, int page_size, ScalarType q_dtype, ScalarType kv_dtype, "
      "bool causal=True, int? window=None, int fixed_split=0) -> ()");
  library.def(
      "plan_words(int max_requests, int max_tokens, int max_kv_len, *, int num_q_heads, "
      "int num_kv_heads, int head_dim, int page_size, ScalarType q_dtype, ScalarType kv_dtype, "
      "bool causal=True, int? window=None, int fixed_split=0, Device? device=None) -> int");
  library.def("plan_summary(Tensor plan) -> str");
  library.def("support() -> str");
  library.def("set_check_values(bool on) -> bool");
}

namespace {

namespace ops = hpcattn::torch_ops;

void register_operators(torch::stable::detail::StableLibrary& library) {
  library.impl("paged_attention", TORCH_BOX(&ops::paged_attention));
  library.impl("packed_attention", TORCH_BOX(&ops::packed_attention));
  library.impl("merge_partials", TORCH_BOX(&ops::merge_partials));
  library.impl("store_kv", TORCH_BOX(&ops::store_kv));
  library.impl("rope_norm_store_kv", TORCH_BOX(&ops::rope_norm_store_kv));
  library.impl("make_plan", TORCH_BOX(&ops::make_plan));
  library.impl("plan_summary", TORCH_BOX(&ops::plan_summary));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hpcattn, CPU, library) { register_operators(library); }
STABLE_TORCH_LIBRARY_IMPL(hpcattn, CUDA, library) { register_operators(library); }

// Any other device comes here: the same functions, whose first check names the tensor and where it
// is. Operators without tensors belong to no device and live here alone.
STABLE_TORCH_LIBRARY_IMPL(hpcattn, CompositeExplicitAutograd, library) {
  register_operators(library);
  library.impl("plan_words", TORCH_BOX(&ops::plan_words));
  library.impl("support", TORCH_BOX(&ops::support));
  library.impl("set_check_values", TORCH_BOX(&ops::set_check_values));
}
