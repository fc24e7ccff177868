// SPDX-License-Identifier: Apache-2.0
// The backend's test layers (src/backend/test_layer.h) with their tensors on the GPU.
#pragma once

#include <string>
#include <vector>

#include "src/backend/test_prologue.h"
#include "src/cuda/device.h"
#include "src/testing/attention_check.h"
#include "src/testing/device_mirror.h"
#include "src/testing/gpu.h"

namespace hpcattn::testkit {

inline constexpr Device kGpu{.type = DeviceType::kCuda, .index = 0};

/// Every tensor that a step of the layer has.
inline std::vector<Tensor> tensors_of(const TestLayer& layer) {
  const CommonAttnMetadata common = layer.common();
  const HpcAttnMetadata none;
  const HpcAttentionForwardArgs args = layer.forward_args(none);
  return {common.cu_seqlens_q,
          common.kv_lens,
          common.page_table,
          common.slot_mapping,
          args.query,
          args.key,
          args.value,
          args.kv_cache,
          args.output,
          args.lse,
          layer.scales().k_scale,
          layer.scales().v_scale};
}

/// The step's tensors on the GPU, its lengths on the host as well.
inline CommonAttnMetadata on_gpu(const DeviceMirror& mirror, const CommonAttnMetadata& host) {
  CommonAttnMetadata common = host;
  common.cu_seqlens_q = mirror.to_device(host.cu_seqlens_q);
  common.kv_lens = mirror.to_device(host.kv_lens);
  common.page_table = mirror.to_device(host.page_table);
  common.slot_mapping = mirror.to_device(host.slot_mapping);
  common.cu_seqlens_q_cpu = host.cu_seqlens_q;
  common.kv_lens_cpu = host.kv_lens;
  return common;
}

inline LayerScales on_gpu(const DeviceMirror& mirror, const LayerScales& host) {
  return {.name = host.name,
          .q_scale = mirror.to_device(host.q_scale),
          .k_scale = mirror.to_device(host.k_scale),
          .v_scale = mirror.to_device(host.v_scale)};
}

/// `scales` outlives what is returned.
inline HpcAttentionForwardArgs on_gpu(const DeviceMirror& mirror,
                                      const HpcAttentionForwardArgs& host,
                                      const LayerScales& scales) {
  HpcAttentionForwardArgs args = host;
  args.layer = &scales;
  for (Tensor* tensor :
       {&args.query, &args.key, &args.value, &args.kv_cache, &args.output, &args.lse}) {
    *tensor = mirror.to_device(*tensor);
  }
  return args;
}

inline HpcRopeNormForwardArgs on_gpu(const DeviceMirror& mirror, const HpcRopeNormForwardArgs& host,
                                     const LayerScales& scales, StepWorkspace& workspace) {
  HpcRopeNormForwardArgs args = host;
  args.scales = &scales;
  args.workspace = &workspace;
  for (Tensor* tensor : {&args.qkv, &args.kv_cache, &args.positions, &args.out_q}) {
    *tensor = mirror.to_device(*tensor);
  }
  return args;
}

inline HpcAttnMetadataBuilderOptions on_gpu(HpcAttnMetadataBuilderOptions options,
                                            const GpuLane& lane) {
  options.device = kGpu;
  options.execution = lane.stream.execution();
  return options;
}

/// Waits, brings everything back, and tells what a kernel reported.
inline std::string finish(const GpuLane& lane, DeviceMirror& mirror) {
  lane.stream.wait();
  std::string report = mirror.download();
  cuda::check_faults(kGpu.index);
  return report;
}

}  // namespace hpcattn::testkit
