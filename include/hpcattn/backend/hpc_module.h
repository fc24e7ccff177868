// SPDX-License-Identifier: Apache-2.0
// HpcModule: a part of a model that replaces the engine's own, where it can.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcattn/backend/attention_backend.h"
#include "hpcattn/tensor.h"

namespace hpcattn {

/// Whether a module serves a model, and every reason why not.
struct ModuleSupport {
  std::vector<std::string> refusals;
  explicit operator bool() const { return refusals.empty(); }
};

/// A weight as the engine's loader left it.
struct NamedWeight {
  std::string_view name;
  Tensor tensor;
};

class HpcModule {
 public:
  virtual ~HpcModule() = default;
  HpcModule(const HpcModule&) = delete;
  HpcModule& operator=(const HpcModule&) = delete;

  /// Whether this module can take the place of the engine's own in such a model.
  virtual ModuleSupport support(const BackendRequest& request) const = 0;

  /// To be called after every loading of weights: the first, a reload, after waking from sleep.
  /// Copies what the module needs; the addresses that its kernels read never change. Throws
  /// InvalidArgument for a missing or misshapen weight, and has then changed nothing.
  virtual void process_weights_after_loading(std::span<const NamedWeight> weights) = 0;

 protected:
  HpcModule() = default;
};

}  // namespace hpcattn
