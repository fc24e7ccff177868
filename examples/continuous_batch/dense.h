// SPDX-License-Identifier: Apache-2.0
// The model again, in float64, over one whole sequence and without a cache: what serving must
// equal. It shares no code with hpcattn.
#pragma once

#include <vector>

#include "model.h"

namespace example {

/// Logits [tokens.size(), vocab].
std::vector<double> dense_logits(const Model& model, const std::vector<int>& tokens);

}  // namespace example
