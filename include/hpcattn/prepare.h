// SPDX-License-Identifier: Apache-2.0
// Compiling or loading, before serving, every kernel that a model's calls on a GPU can take.
// Nothing compiles in a step after that: counters()["compilations"] stays where it is.
//
//   prepare({.group = {.num_q_heads = 32, .num_kv_heads = 8, .head_dim = 128, .page_size = 16,
//                      .q_dtype = DType::kBFloat16, .kv_dtype = DType::kFloat8E4M3}},
//           {DeviceType::kCuda, 0});
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hpcattn/dtype.h"
#include "hpcattn/plan.h"
#include "hpcattn/rope.h"

namespace hpcattn {

/// Layers that are alike. A model with several kinds of layers has several descriptions.
struct ModelDescription {
  /// As attention will be called, paged or packed. q_dtype float8: q comes quantised.
  AttentionGroup group;
  /// Of q, k and v before store_kv and rope_norm_store_kv, and of attention's out.
  DType dtype = DType::kBFloat16;
  bool softcap = false;
  bool alibi = false;
  QkNormPolicy norm_policy = QkNormPolicy::kNone;
  NormScope norm_scope = NormScope::kHead;
};

struct PreparedKernel {
  int done = 0;  // of total, this one included
  int total = 0;
  std::string name;  // the kernel with its parameters, as errors name it
  double seconds = 0;
  bool compiled = false;  // else it came from a cache or from what ships, or was loaded already
};

struct PrepareOptions {
  /// 0: the cores of this process.
  int num_threads = 0;
  /// Called from any thread, one call at a time, as each kernel is ready.
  std::function<void(const PreparedKernel&)> progress;
};

/// Returns when all kernels are loaded on the GPU. Throws InvalidArgument or Unsupported for layers
/// that a GPU does not compute, DeviceError where there is no GPU, or a kernel that is in no cache
/// and no libnvrtc.
void prepare(const std::vector<ModelDescription>& model, Device device,
             const PrepareOptions& options = {});

/// The same without a GPU, for one of "sm_90a" and the like: the cache then holds all kernels.
void prepare_for_arch(const std::vector<ModelDescription>& model, const std::string& arch,
                      const PrepareOptions& options = {});

}  // namespace hpcattn
