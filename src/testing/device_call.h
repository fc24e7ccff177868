// SPDX-License-Identifier: Apache-2.0
// Calls of operators on a GPU over arguments whose tensors lie on the host.
#pragma once

#include <string>
#include <vector>

#include "hpcattn/attention.h"
#include "hpcattn/merge.h"
#include "hpcattn/rope.h"
#include "hpcattn/store.h"
#include "src/cuda/device.h"
#include "src/testing/device_mirror.h"

namespace hpcattn::testkit {

template <typename Body>
void for_each_tensor(AttentionOptions& options, Body body) {
  for (Tensor* tensor : {&options.alibi_slopes, &options.sinks, &options.q_scale, &options.k_scale,
                         &options.v_scale, &options.out_scale}) {
    body(*tensor);
  }
}

template <typename Body>
void for_each_tensor(PagedAttentionArgs& a, Body body) {
  for (Tensor* tensor : {&a.q, &a.k_cache, &a.v_cache, &a.page_table, &a.cu_seqlens_q, &a.kv_lens,
                         &a.out, &a.lse, &a.plan}) {
    body(*tensor);
  }
  for_each_tensor(a.options, body);
}

template <typename Body>
void for_each_tensor(PackedAttentionArgs& a, Body body) {
  for (Tensor* tensor :
       {&a.q, &a.k, &a.v, &a.cu_seqlens_q, &a.cu_seqlens_k, &a.out, &a.lse, &a.plan}) {
    body(*tensor);
  }
  for_each_tensor(a.options, body);
}

/// A packed call and what its plan is made from.
struct PlannedPacked {
  PackedAttentionArgs args;
  Tensor kv_lens;
};

template <typename Body>
void for_each_tensor(PlannedPacked& a, Body body) {
  for_each_tensor(a.args, body);
  body(a.kv_lens);
}

template <typename Body>
void for_each_tensor(StoreKvArgs& a, Body body) {
  for (Tensor* tensor :
       {&a.k, &a.v, &a.k_cache, &a.v_cache, &a.slot_mapping, &a.k_scale, &a.v_scale}) {
    body(*tensor);
  }
}

template <typename Body>
void for_each_tensor(RopeNormStoreKvArgs& a, Body body) {
  for (Tensor* tensor : {&a.q,
                         &a.k,
                         &a.v,
                         &a.cos_sin,
                         &a.positions,
                         &a.cu_seqlens_q,
                         &a.kv_lens,
                         &a.page_table,
                         &a.slot_mapping,
                         &a.k_cache,
                         &a.v_cache,
                         &a.k_scale,
                         &a.v_scale,
                         &a.out_q,
                         &a.out_k,
                         &a.out_v,
                         &a.q_scale,
                         &a.out_q_scale,
                         &a.cleared,
                         &a.q_norm_weight,
                         &a.k_norm_weight}) {
    body(*tensor);
  }
}

template <typename Body>
void for_each_tensor(MergeArgs& a, Body body) {
  for (Tensor& tensor : a.partials) body(tensor);
  for (Tensor& tensor : a.lses) body(tensor);
  body(a.out);
  body(a.lse);
}

/// Copies the memory of `host` to the GPU, calls operation(args on the GPU, execution), waits, and
/// copies all of it back, also where the operation throws. "" when nothing around it was written.
template <typename Args, typename Operation>
std::string call_on_gpu(GpuLane& lane, const Args& host, Operation operation) {
  Args device = host;
  std::vector<Tensor> tensors;
  for_each_tensor(device, [&](Tensor& tensor) { tensors.push_back(tensor); });
  DeviceMirror mirror(lane, tensors);
  mirror.upload();
  for_each_tensor(device, [&](Tensor& tensor) { tensor = mirror.to_device(tensor); });
  try {
    operation(device, lane.workspace.execution(lane.stream));
  } catch (...) {
    mirror.download();
    throw;
  }
  lane.stream.wait();
  std::string report = mirror.download();
  cuda::check_faults(0);
  return report;
}

}  // namespace hpcattn::testkit
